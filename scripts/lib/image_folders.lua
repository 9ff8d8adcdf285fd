-- A data set to train on and one to test on, from folders that hold a folder of JPEG or PNG
-- files for each class.

local dm = require "demilune"

local image_folders = {}

local function exists(path)
  local f = io.open(path)
  return f and f:close()
end

local function read(path, transform)
  return dm.datasets.ImageFolder(path, {transform = transform})
end

-- Four fifths of a folder's images to train on, the others to test on.
local function by_fraction(path, o)
  local train, problem = read(path, o.train)
  if not train then return nil, problem end
  local fractions, draw = {0.8, 0.2}, {seed = o.seed}
  local _, test = dm.data.random_split(assert(read(path, o.test)), fractions, draw)
  return train.classes, (dm.data.random_split(train, fractions, draw)), test
end

local function by_folder(train_path, test_path, o)
  local train, train_problem = read(train_path, o.train)
  local test, test_problem = read(test_path, o.test)
  if not train or not test then return nil, train_problem or test_problem end
  if table.concat(train.classes, "/") ~= table.concat(test.classes, "/") then
    return nil, ("'%s' and '%s' have folders of other names"):format(train_path, test_path)
  end
  return train.classes, train, test
end

-- split(root, {train = transform, test = transform, seed =}) -> the names of the classes, a
-- training set, a test set; or nil and a message. The sets are the folders `train` and `val`
-- (or `test`) of root. Without the latter a fifth of `train` is the test set, without `train`
-- a fifth of root.
function image_folders.split(root, o)
  local train_path = root .. "/train"
  if not exists(train_path) then return by_fraction(root, o) end
  for _, name in ipairs{"val", "test"} do
    local path = ("%s/%s"):format(root, name)
    if exists(path) then return by_folder(train_path, path, o) end
  end
  return by_fraction(train_path, o)
end

-- `count` samples of the set, drawn at random; all of them without a count.
function image_folders.limited(set, count, seed)
  if not count or count >= #set then return set end
  return (dm.data.random_split(set, {count, #set - count}, {seed = seed}))
end

return image_folders
