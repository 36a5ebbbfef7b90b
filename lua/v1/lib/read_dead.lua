-- A dead entry's fields as a table: see bury.
local DEAD_BYTES = 4 * 1024 * 1024  -- of bodies that one call may look at

local function fields_of(entry)
  local fields = {}
  for i = 1, #entry[2], 2 do
    fields[entry[2][i]] = entry[2][i + 1]
  end
  return fields
end
