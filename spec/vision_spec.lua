-- dm.vision beside the values of spec/golden/vision.lua: many boxes, regions in other dtypes, what
-- is refused, and the layers of models.

local dm = require "demilune"
local nn, vision = dm.nn, dm.vision

-- Boxes (n, 4) in a square of this side.
local function random_boxes(n, side)
  local corner = dm.rand(n, 2) * side
  return dm.cat({corner, corner + dm.rand(n, 2) * 8 + 0.5}, 2)
end

describe("nms", function()
  -- The definition: each box that is still there removes those behind it.
  local function by_definition(boxes, scores, groups, threshold)
    local iou = vision.box_iou(boxes, boxes):totable()
    local order = scores:argsort{descending = true, stable = true}:totable()
    local gone, kept = {}, {}
    for _, i in ipairs(order) do
      if not gone[i] then
        kept[#kept + 1] = i
        for j, v in ipairs(iou[i]) do
          gone[j] = gone[j] or groups[i] == groups[j] and v > threshold
        end
      end
    end
    return kept
  end

  it("of more boxes than are compared at a time keeps what the definition keeps", function()
    dm.manual_seed(4)
    local boxes, scores = random_boxes(700, 60), dm.rand(700)
    local groups = dm.randint(1, 4, {700})
    local one = {}
    for i = 1, 700 do one[i] = 0 end
    local kept = by_definition(boxes, scores, one, 0.3)
    assert.is_true(#kept > 256 and #kept < 600)
    assert.same(kept, vision.nms(boxes, scores, 0.3):totable())
    assert.same(by_definition(boxes, scores, groups:totable(), 0.3),
      vision.batched_nms(boxes, scores, groups, 0.3):totable())
  end)

  it("compares with the threshold in float64", function()
    local boxes = dm.tensor{{0, 0, 10, 1}, {0, 0, 1, 1}}:float()
    assert.same({1}, vision.nms(boxes, dm.tensor{2.0, 1.0}, 0.1):totable()) -- 0.1f > 0.1
  end)

  it("refuses what does not belong together", function()
    assert.refuses("nms: boxes are {2, 4}, scores {3}; wanted {N, 4} and {N}", function()
      vision.nms(dm.zeros(2, 4), dm.zeros(3), 0.5)
    end)
    assert.refuses("nms: boxes are {2, 5}, wanted a tensor", function()
      vision.nms(dm.zeros(2, 5), dm.zeros(2), 0.5)
    end)
    assert.refuses("batched_nms: idxs is missing", function()
      vision.batched_nms(dm.zeros(2, 4), dm.zeros(2), nil, 0.5)
    end)
  end)
end)

describe("boxes", function()
  it("of small integers do not overflow", function()
    local boxes = dm.tensor({{0, 0, 200, 200}, {100, 100, 200, 200}}, {dtype = "uint8"})
    assert.same({40000, 10000}, vision.box_area(boxes):totable())
    assert.same({{1.0, 0.25}, {0.25, 1.0}}, vision.box_iou(boxes, boxes):totable())
  end)

  it("refuse unknown formats and options", function()
    assert.refuses("box_convert: out_fmt is 'yxyx', wanted 'xyxy', 'xywh' or 'cxcywh'",
      function() vision.box_convert(dm.zeros(1, 4), "xyxy", "yxyx") end)
    assert.refuses("box_iou: unknown option 'fmat'; did you mean 'fmt'", function()
      vision.box_iou(dm.zeros(1, 4), dm.zeros(1, 4), {fmat = "xywh"})
    end)
    assert.refuses("generalized_box_iou_loss: boxes are {1, 4} and {2, 4}, wanted the same",
      function() vision.generalized_box_iou_loss(dm.zeros(1, 4), dm.zeros(2, 4)) end)
    assert.refuses("reduction is 'max', wanted 'none'", function()
      vision.sigmoid_focal_loss(dm.zeros(2), dm.zeros(2), {reduction = "max"})
    end)
  end)

  it("of no pairs have the loss 0", function()
    local none = dm.zeros(0, 4)
    assert.equal(0, vision.generalized_box_iou_loss(none, none, {reduction = "mean"}):item())
  end)
end)

describe("roi_align", function()
  local rois = dm.tensor{{1, 0.5, 0.25, 4, 3.5}, {2, 1, 1, 3, 4.75}, {1, 2, 0, 5, 5}}

  it("has the gradient of its definition", function()
    local x = dm.randn(2, 2, 5, 5, {dtype = "float64", requires_grad = true})
    local function align(t)
      return vision.roi_align(t, rois, 2, {sampling_ratio = 2, aligned = true})
    end
    assert.is_true(dm.autograd.gradcheck(align, {x}))
  end)

  it("sums in float32 under autocast and of 16 bits", function()
    local x = dm.randn(2, 3, 5, 5)
    local wanted = vision.roi_align(x, rois, 2)
    local cast = dm.amp.autocast({dtype = "bfloat16"}, function()
      return vision.roi_align(x, rois, 2)
    end)
    assert.is_true(dm.equal(wanted, cast))
    local low = x:to "bfloat16"
    assert.is_true(dm.equal(vision.roi_align(low:float(), rois, 2):to "bfloat16",
      vision.roi_align(low, rois, 2)))
  end)

  it("is a module too", function()
    local x = dm.randn(2, 3, 5, 5)
    local layer = vision.RoIAlign({2, 3}, 0.5, 2, {aligned = true})
    assert.is_true(dm.equal(layer(x, rois), vision.roi_align(x, rois, {2, 3},
      {spatial_scale = 0.5, sampling_ratio = 2, aligned = true})))
  end)

  it("counts images from 1", function()
    assert.refuses("row 1 of boxes names image 0.*the input has 2; they count from 1", function()
      vision.roi_align(dm.zeros(2, 1, 4, 4), dm.zeros(1, 5), 2)
    end)
    assert.refuses("boxes of 1 images, the input has 2", function()
      vision.roi_align(dm.zeros(2, 1, 4, 4), {dm.zeros(1, 4)}, 2)
    end)
    assert.same({0, 1, 2, 2},
      {table.unpack(vision.roi_align(dm.zeros(0, 1, 4, 4), {}, 2).shape)})
  end)
end)

describe("layers of models", function()
  it("Conv2dNormActivation leaves out what is false", function()
    local layer = vision.Conv2dNormActivation(3, 8, {kernel_size = 5, dilation = 2})
    assert.same({1, 8, 9, 9}, {table.unpack(layer(dm.randn(1, 3, 9, 9)).shape)})
    assert.is_nil(layer[1].bias)
    assert.equal("BatchNorm2d ReLU", layer[2].class .. " " .. layer[3].class)
    local plain = vision.Conv2dNormActivation(3, 8, {norm_layer = false, activation_layer = false})
    assert.equal(1, #plain:children())
    assert.is_truthy(plain[1].bias)
  end)

  it("SqueezeExcitation, MLP, Permute and LayerNorm2d are their definitions", function()
    local x = dm.randn(2, 4, 3, 3)
    local se = vision.SqueezeExcitation(4, 2)
    local share = se.fc2(se.fc1(x:mean({3, 4}, {keepdim = true})):relu()):sigmoid()
    assert.is_true(se(x):allclose(x * share, {rtol = 1e-5, atol = 1e-6}))
    local mlp = vision.MLP(3, {5, 2}, {norm_layer = nn.LayerNorm})
    local names = {}
    for _, layer in ipairs(mlp) do names[#names + 1] = layer.class end
    assert.equal("Linear LayerNorm ReLU Dropout Linear Dropout", table.concat(names, " "))
    local permuted = vision.Permute{1, 3, 4, 2}(x)
    assert.is_true(dm.equal(x:permute(1, 3, 4, 2), permuted))
    local y = vision.LayerNorm2d(4)(x)
    assert.is_true(y:mean(2):allclose(dm.zeros(2, 3, 3), {atol = 1e-6}))
  end)

  it("stochastic_depth leaves out rows, or the batch", function()
    dm.manual_seed(2)
    local x = dm.ones(64, 3)
    local rows = vision.stochastic_depth(x, 0.5, "row"):sum(2)
    assert.is_true(rows:eq(0):any():item() and rows:eq(6):any():item())
    for _ = 1, 8 do
      local all = vision.stochastic_depth(x, 0.5, "batch")
      assert.is_true(dm.equal(all, x * 0) or dm.equal(all, x * 2))
    end
    assert.is_true(rawequal(x, vision.stochastic_depth(x, 0.5, "row", {training = false})))
    assert.refuses("mode is 'rows', wanted 'row' or 'batch'", function()
      vision.stochastic_depth(x, 0.5, "rows")
    end)
  end)
end)
