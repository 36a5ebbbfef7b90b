-- The parts of bodies that wait for others, in the hash `joins`. A part is named child:index. The name x<child>:<index>
-- stays after a dead part: so its sub-request, if it runs again, is not joined a second time.
-- @include lib/entries/add_entries.lua
local PARTS_MS = "2678400000"  -- 31 days: longer than any queue is without a worker
local MOST_PARTS, MOST_WIDTH = 2000, 100

local function parts_error(width, list, first)
  if not width or width < 1 or width > MOST_WIDTH or (#list - first) % 2 == 0 or #list >= first + MOST_PARTS then
    return redis.error_reply("BADARGUMENT a width of 1 to 100 and at most 1000 pairs of a name and a part are expected")
  end
  for i = first, #list, 2 do
    local child = string.match(list[i], "^(%d+):%d+:?x?$")
    if not child or tonumber(child) < 1 or tonumber(child) > width then
      return redis.error_reply("BADARGUMENT the names of parts are child:index, and child:index:x for a dead one")
    end
  end
end

-- Returns the bodies that are whole with list[first...], and what changes in `joins`: name -> part, false = it goes.
-- Changes nothing.
local function put_together(width, list, first, wrap)
  local bodies, kept = {}, {}
  for i = first, #list, 2 do
    local child, index, mark = string.match(list[i], "^(%d+):(%d+):?(x?)$")
    local names = {}
    for one = 1, width do
      names[one] = one .. ":" .. index
    end
    local own = tonumber(child)
    names[width + 1] = "x" .. child .. ":" .. index
    local row = redis.call("HMGET", joins, unpack(names))
    for one, name in ipairs(names) do
      if kept[name] ~= nil then
        row[one] = kept[name]
      end
    end
    if row[own] or not row[width + 1] then  -- else its body was made without it
      row[own] = list[i + 1]
      if mark == "x" then
        kept[names[width + 1]] = ""
      end
      local count = 0
      for one = 1, width do
        count = count + (row[one] and 1 or 0)
      end
      for one = 1, count == width and width or 0 do
        kept[names[one]] = false
      end
      if count == width then
        bodies[#bodies + 1] = wrap[1] .. table.concat(row, wrap[2], 1, width) .. wrap[3]
      else
        kept[names[own]] = list[i + 1]
      end
    end
  end
  return bodies, kept
end

local function keep_parts(kept)
  for name, part in pairs(kept) do
    if part then
      redis.call("HSET", joins, name, part)
    else
      redis.call("HDEL", joins, name)
    end
  end
  redis.call("PEXPIRE", joins, PARTS_MS)
end
