-- The parts of bodies that wait for others, in the hash `joins`. A part is named child:index.
-- @include lib/entries/add_entries.lua
-- @include lib/flows/handed.lua
local PARTS_MS = "2678400000"  -- 31 days: longer than any queue is without a worker
local MOST_PARTS, MOST_WIDTH = 2000, 100

local function parts_error(width, list, first)
  if not width or width < 1 or width > MOST_WIDTH or (#list - first) % 2 == 0 or #list >= first + MOST_PARTS then
    return redis.error_reply("BADARGUMENT a width of 1 to 100 and at most 1000 pairs of a name and a part are expected")
  end
  for i = first, #list, 2 do
    local child, index = string.match(list[i], "^(%d+):(%d+)$")
    if not child or tonumber(child) < 1 or tonumber(child) > width or tonumber(index) > MOST_INDEX then
      return redis.error_reply("BADARGUMENT the names of parts are child:index")
    end
  end
end

-- Returns the bodies that are whole with list[first...], what changes in `joins`: name -> part, false = it goes, and the
-- indexes of the bodies. Changes nothing.
local function put_together(width, list, first, wrap)
  local bodies, kept, made, indexes = {}, {}, {}, {}
  for i = first, #list, 2 do
    local child, index = string.match(list[i], "^(%d+):(%d+)$")
    if not made[index] and not is_handed(index) then  -- else its body was made without it
      local names = {}
      for one = 1, width do
        names[one] = one .. ":" .. index
      end
      local row, count, own = redis.call("HMGET", joins, unpack(names)), 0, tonumber(child)
      for one, name in ipairs(names) do
        if kept[name] ~= nil then
          row[one] = kept[name]
        end
        if one == own then
          row[one] = list[i + 1]
        end
        count = count + (row[one] and 1 or 0)
      end
      if count == width then
        made[index] = true
        for _, name in ipairs(names) do
          kept[name] = false
        end
        bodies[#bodies + 1] = wrap[1] .. table.concat(row, wrap[2], 1, width) .. wrap[3]
        indexes[#indexes + 1] = index
      else
        kept[names[own]] = list[i + 1]
      end
    end
  end
  return bodies, kept, indexes
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
