-- dm.datasets.ImageFolder: images in folders, one a class (torchvision.datasets).
--
-- Only names are held in memory. The loader's threads read, decode and transform the
-- images of a batch; a transform that they do not know runs in Lua, image by image.

local core = require "demilune.core"
local caller = require "demilune.caller"
local options = require "demilune.options"
local data = require "demilune.data.dataset"
local image = require "demilune.image"
local transforms = require "demilune.transforms"

local ImageFolder = data.Dataset:extend "ImageFolder"
ImageFolder.__stays = {images = true, declared = true} -- which only columns() reads

local bind = options.signature("ImageFolder", [[root: string, transform?: function, *,
  is_valid_file?: function, allow_empty: boolean = false, mode: 'rgb'|'gray' = 'rgb',
  exif: boolean = true]])
local EXTENSIONS = {jpg = true, jpeg = true, png = true}

local function has_extension(path)
  return EXTENSIONS[(path:match "%.(%a+)$" or ""):lower()]
end

-- Whether a comes first in the order of bytes; `<` would ask the locale.
local function before(a, b)
  local i = 1
  while a:byte(i) and a:byte(i) == b:byte(i) do i = i + 1 end
  return (a:byte(i) or -1) < (b:byte(i) or -1)
end

-- Adds {path =, files = names} of the folder and those below it to `found`. A link to a
-- folder is followed, but not into one that we are in: `above` has those. Or nil and why.
local function walk(path, found, above)
  local files, folders, which = core._list("ImageFolder", path)
  if not files then return nil, folders end
  found[#found + 1] = {path = path, files = files}
  for _, name in ipairs(folders) do
    local id = which[name]
    if not above[id] then
      above[id] = true
      local ok, problem = walk(("%s/%s"):format(path, name), found, above)
      if not ok then return nil, problem end
      above[id] = nil
    end
  end
  return true
end

-- Adds the images of a class to the samples, in the order of (folder, name).
local function gather(samples, path, id, class, is_valid)
  local found = {}
  local ok, problem = walk(path, found, {[id] = true})
  if not ok then return nil, problem end
  table.sort(found, function(a, b) return before(a.path, b.path) end)
  for _, folder in ipairs(found) do
    for _, name in ipairs(folder.files) do
      local file = ("%s/%s"):format(folder.path, name)
      if is_valid(file) then samples[#samples + 1] = {file, class} end
    end
  end
  return true
end

-- samples, classes; or nil and a message.
local function find(root, opts)
  local _, classes, which = core._list("ImageFolder", root)
  if not classes then return nil, which end
  if not which then return nil, classes end
  if #classes == 0 then
    return nil, ("ImageFolder: '%s' has no folders; hint: each class is a folder"):format(root)
  end
  local samples, empty = {}, {}
  for class, name in ipairs(classes) do
    local n = #samples
    local ok, problem = gather(samples, ("%s/%s"):format(root, name), which[name], class,
      opts.is_valid_file or has_extension)
    if not ok then return nil, problem end
    if #samples == n then empty[#empty + 1] = ("'%s'"):format(name) end
  end
  if #empty > 0 and not opts.allow_empty then
    return nil, ("ImageFolder: no images%s in %s of '%s'; hint: allow_empty = true"):format(
      opts.is_valid_file and "" or " (.jpg, .jpeg, .png)", table.concat(empty, ", "), root)
  end
  return samples, classes
end

function ImageFolder:init(root, samples, classes, opts)
  self.root, self.samples, self.classes, self.class_to_idx = root, samples, classes, {}
  for class, name in ipairs(classes) do self.class_to_idx[name] = class end
  self.mode, self.exif = opts.mode, opts.exif
  self.transform = opts.transform or transforms.ToTensor()
  self.declared = transforms.declare(self.transform, self.mode == "rgb" and 3 or 1)
  local paths, labels = {}, {}
  for i, sample in ipairs(samples) do paths[i], labels[i] = sample[1], sample[2] end
  self.labels = core.keep(#labels > 0 and core.tensor(labels, {dtype = "int64", device = "cpu"})
    or core.zeros(0, {dtype = "int64", device = "cpu"}))
  self.images = core._images(paths, self.mode, self.exif)
end

function ImageFolder:len() return #self.samples end

-- The image i, transformed, and its label, int64 (). A file at fault is an error.
function ImageFolder:get(i)
  data.check_position(self.class, i, self:len())
  local x, problem = image.read_image(self.samples[i][1], {mode = self.mode, exif = self.exif})
  if not x then caller.raise("ImageFolder: sample %d: %s", i, problem) end
  return self.transform(x), self.labels[i]
end

ImageFolder.native_get = ImageFolder.get
function ImageFolder:columns()
  if not self.declared then return nil end -- Lua makes the samples
  return {{images = self.images, augment = self.declared}, {tensor = self.labels}}
end

function ImageFolder:__tostring()
  return ("ImageFolder('%s', %d samples, %d classes)"):format(self.root, self:len(),
    #self.classes)
end

-- ImageFolder(root, {transform = one of dm.transforms, mode = "rgb", exif = true,
-- allow_empty = false, is_valid_file = function(path) -> boolean}) -> a data set; or nil
-- and a message. Each folder in root is a class; classes count from 1 in the order of their
-- names. Its images are the .jpg, .jpeg and .png files in it, at any depth, in the order
-- of folder and name; is_valid_file chooses instead. A class without any is a fault, unless
-- allow_empty. The set has .classes, .class_to_idx, .samples = {{path, class}, ...}.
-- transform: dm.transforms.ToTensor() unless given; mode, "rgb" or "gray", and exif as
-- dm.read_image has them. Images of different sizes need a Resize or a crop.
return function(...)
  local opts = bind(...)
  local root = opts.root
  root = #root > 1 and root:gsub("/+$", "") or root
  local samples, classes = find(root, opts)
  if not samples then return nil, classes end
  return ImageFolder(root, samples, classes, opts)
end
