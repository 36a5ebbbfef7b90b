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
