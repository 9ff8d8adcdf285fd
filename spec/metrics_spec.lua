-- Metrics follow scikit-learn's definitions; the expected values are computed by hand on small
-- inputs.
local dm = require "demilune"
local metrics = dm.metrics

local function ids(list) return dm.tensor(list, {dtype = "int64"}) end

describe("metrics", function()
  local scores = dm.tensor{{0.1, 0.7, 0.2}, {0.5, 0.3, 0.2}, {0.2, 0.3, 0.5}, {0.4, 0.35, 0.25}}
  local y = ids{2, 1, 2, 3} -- decided: 2, 1, 3, 1

  it("Accuracy, of the best and of the k best", function()
    local one, two = metrics.Accuracy(), metrics.Accuracy{top_k = 2}
    assert.is_true(one:compute() ~= one:compute()) -- nan
    one:update(scores, y)
    two:update(scores, y)
    assert.equal(0.5, one:compute())
    assert.equal(0.75, two:compute())
    one:update(ids{1, 1}, ids{1, 1})
    assert.equal(4 / 6, one:compute())
    assert.equal(1, one:reset():update(ids{3}, ids{3}):compute())
    assert.equal("Accuracy(1.0)", tostring(one))
  end)

  it("Accuracy leaves out labels of ignore_index", function()
    local given = dm.tensor{{0.9, 0.1, 0.0}, {0.1, 0.2, 0.7}, {0.5, 0.3, 0.2}, {0.1, 0.8, 0.1}}
    local one = metrics.Accuracy{ignore_index = -100}
    assert.is_true(one:compute() ~= one:compute()) -- NaN
    one:update(given, ids{1, -100, 2, -100})
    assert.equal(1 / 2, one:compute())
    one:update(given:argmax(2), ids{-100, 3, -100, -100})
    assert.equal(2 / 3, one:compute())
    local two = metrics.Accuracy{top_k = 2, ignore_index = 2}
    assert.equal(1 / 2, two:update(given, ids{3, 3, 2, 2}):compute())
    assert.is_true(tostring(two:reset()):find "no samples yet" ~= nil)
    two:update(given, ids{2, 2, 2, 2})
    assert.matches("no samples yet", tostring(two))
  end)

  it("takes scores with the classes in any dim, and refuses those of another shape", function()
    -- two samples, two classes, two positions: decided 1 2 and 2 2 along dim 2
    local planes = dm.tensor{{{0.9, 0.1}, {0.2, 0.3}}, {{0.1, 0.3}, {0.5, 0.4}}}
    local labels = ids{{1, 1}, {2, 2}}
    assert.equal(3 / 4, metrics.Accuracy{dim = 2}:update(planes, labels):compute())
    assert.equal(1, metrics.Accuracy{top_k = 2, dim = 2}:update(planes, labels):compute())
    local m = metrics.ConfusionMatrix{num_classes = 2, dim = 2}:update(planes, labels)
    assert.same({{1, 1}, {0, 2}}, m:compute():totable())
    m = metrics.Recall{num_classes = 2, average = "none", dim = -2}:update(planes, labels)
    assert.same({0.5, 1}, m:compute())
    -- as many numbers as labels, which says nothing
    local image = dm.zeros(2, 3, 5, 3)
    for _, metric in ipairs{metrics.Accuracy(), metrics.Accuracy{top_k = 2},
      metrics.F1Score{num_classes = 3}} do
      assert.error_matches(function() metric:update(image, dm.ones(2, 5, 3):long()) end,
        "for labels {2, 5, 3}, .*; hint: dim = 2 for scores %(N, C, ...%), here it is %-1")
    end
  end)

  it("ConfusionMatrix, as a tensor and as a table", function()
    local m = metrics.ConfusionMatrix{num_classes = 3, names = {"cat", "dog", "horse"}}
    m:update(scores, y):update(ids{1}, ids{1})
    assert.same({{2, 0, 0}, {0, 1, 1}, {1, 0, 0}}, m:compute():totable())
    assert.equal([[
         cat    dog  horse  recall
  cat      2      0      0  1.000
  dog      0      1      1  0.500
horse      1      0      0  0.000]], tostring(m))
    -- a device reports it when the counts are read
    assert.error_matches(function() m:update(ids{4}, ids{1}):compute():totable() end,
      "4 .* wanted 1 to 3")
    assert.error_matches(function() m:update(ids{1}, ids{0}):compute():totable() end,
      "0 .* wanted 1 to 3")
  end)

  it("Precision, Recall and F1Score", function()
    local function value(name, average)
      local m = metrics[name]{num_classes = 4, average = average}
      return m:update(scores, y):compute()
    end
    -- class 1: decided twice, once right; 2: once, right, of two; 3: once, wrong; 4: never
    assert.same({0.5, 1, 0, 0}, value("Precision", "none"))
    assert.same({1, 0.5, 0, 0}, value("Recall", "none"))
    assert.near(0.5, value "Precision", 1e-12)
    assert.near(0.5, value "Recall", 1e-12)
    assert.near((2 / 3 + 2 / 3 + 0) / 3, value "F1Score", 1e-12)
    assert.near((0.5 * 1 + 1 * 2 + 0) / 4, value("Precision", "weighted"), 1e-12)
    for _, name in ipairs{"Precision", "Recall", "F1Score"} do
      assert.equal(0.5, value(name, "micro"))
    end
  end)

  it("AUROC, ties counting half", function()
    local m = metrics.AUROC()
    m:update(dm.tensor{0.1, 0.4, 0.35, 0.8}, ids{0, 0, 1, 1})
    assert.equal(0.75, m:compute())
    m:update(dm.tensor{0.4}, dm.tensor{1})
    -- pairs won: 0.35 one, 0.8 two, 0.4 one and a half; of six
    assert.near(4.5 / 6, m:compute(), 1e-12)
    assert.equal(0.5, m:reset():update(dm.ones(4), ids{0, 1, 0, 1}):compute())
    m:reset():update(dm.ones(2), ids{1, 1})
    assert.is_true(m:compute() ~= m:compute())
  end)

  it("AUROC is nan of a score that is nan, and wants labels 0 and 1", function()
    local m = metrics.AUROC():update(dm.tensor{0 / 0, 0.2, 0 / 0, 0.1}, ids{0, 1, 1, 0})
    assert.is_true(m:compute() ~= m:compute())
    m:reset():update(dm.tensor{0.1, 0.9, 0.3}, ids{1, 2, 1})
    assert.error_matches(function() m:compute() end, "a label is 2, wanted 1 for the positive")
    m:reset():update(dm.tensor{0.1, 0.9, 0.3}, ids{-1, 1, -1})
    assert.error_matches(function() m:compute() end, "a label is %-1")
  end)

  it("Perplexity", function()
    local m = metrics.Perplexity{ignore_index = 4}
    m:update(dm.zeros(2, 3, 4), ids{{1, 2, 4}, {3, 4, 4}})
    assert.near(4, m:compute(), 1e-6)
    m = metrics.Perplexity():update(dm.tensor{{0, math.log(3)}}, ids{2})
    assert.near(4 / 3, m:compute(), 1e-6)
    -- scores in float64 are not rounded to float32
    m = metrics.Perplexity():update(dm.tensor({{0, 1e-9, 1}}, {dtype = "float64"}), ids{2})
    assert.near((1 + math.exp(1e-9) + math.exp(1)) / math.exp(1e-9), m:compute(), 1e-12)
  end)

  it("Mean, of numbers and tensors, weighted", function()
    local m = metrics.Mean()
    m:update(1):update(dm.tensor{2.0, 6.0}):update(5, 3)
    assert.near((1 + 8 + 15) / 6, m:compute(), 1e-12)
  end)

  it("Mean takes a tensor of weights, as torchmetrics' MeanMetric does", function()
    local m = metrics.Mean()
    m:update(dm.tensor{1.0, 2.0, 4.0}, dm.tensor{0.5, 0.25, 0.25})
    assert.near(2, m:compute(), 1e-12)
    m:update(dm.tensor{{1.0, 2.0}, {3.0, 4.0}}, dm.tensor{1.0, 2.0}):update(8, dm.tensor(2.0))
    assert.near((2 + 16 + 16) / (1 + 6 + 2), m:compute(), 1e-12)
  end)

  it("Mean outlives the scope in which a number came behind a tensor", function()
    local m = metrics.Mean():update(dm.tensor{1.0, 2.0, 3.0})
    do
      local _ <close> = dm.scope()
      m:update(5)
    end
    assert.equal(11 / 4, m:compute())
  end)

  it("keeps no graph and no temporaries", function()
    local accuracy = metrics.Accuracy()
    local w = dm.randn(8, 3, {requires_grad = true})
    local labels = dm.randint(3, {8})
    accuracy:update(w * 2, labels)
    collectgarbage()
    local before = dm.memory_allocated()
    for _ = 1, 50 do
      local _ <close> = dm.scope()
      accuracy:update(w * 2, labels)
    end
    assert.equal(before, dm.memory_allocated())
    assert.is_false(accuracy.right.requires_grad)
  end)

  it("refuse what they cannot use", function()
    assert.error_matches(function() metrics.Accuracy{top_k = 0} end, "from 1 up")
    assert.error_matches(function() metrics.Accuracy():update(scores, ids{1}) end, "labels %(N%)")
    assert.error_matches(function() metrics.Accuracy():update(3, y) end, "a tensor expected")
    assert.error_matches(function() metrics.ConfusionMatrix() end, "num_classes is missing")
    assert.error_matches(function() metrics.F1Score{num_classes = 2, average = "mean"} end, "macro")
    assert.error_matches(function() metrics.AUROC():update(scores, y) end, "12 scores for 4")
    assert.error_matches(function() metrics.Perplexity():update(y, y) end, "wanted")
  end)
end)
