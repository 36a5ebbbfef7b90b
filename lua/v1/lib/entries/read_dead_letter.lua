local DEAD_BYTES = 4 * 1024 * 1024  -- of bodies that one call may read

-- Returns a dead entry's fields as a table: see bury.
local function fields_of(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  return fields
end

-- Returns the error about the ids of dead entries from list[first] on, nil if there is none.
local function ids_error(list, first)
  if #list - first + 1 > 1000 then
    return redis.error_reply("BADCOUNT at most 1000 dead entries in one call")
  end
  for i = first, #list do
    if not string.match(list[i], "^%d+%-%d+$") then
      return redis.error_reply("BADARGUMENT ids of dead entries are expected")
    end
  end
end

local function drop_text(name)
  local more = tonumber(redis.call("HGET", errors, "+" .. name) or 0)
  if more > 1 then
    redis.call("HINCRBY", errors, "+" .. name, -1)
  elseif more == 1 then
    redis.call("HDEL", errors, "+" .. name)
  else
    redis.call("HINCRBY", errors, "bytes", -redis.call("HSTRLEN", errors, name))
    redis.call("HDEL", errors, name)
  end
  if redis.call("HLEN", errors) <= 1 then  -- only `bytes`, which is then 0
    redis.call("UNLINK", errors)
  end
end

-- Forgets the text of the error of one dead sub-request: see lib/entries/error_texts.lua. If Redis refuses that, the text is
-- kept until the request goes, because the caller has begun to move or drop the sub-request.
local function forget_error(name)
  pcall(drop_text, name)
end
