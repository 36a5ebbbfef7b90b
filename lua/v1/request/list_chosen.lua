-- list_chosen: returns the next entries of `out` of a request whose sub-requests were chosen, with the origin of each of
-- their results. Both are read in one call, because a failover may give the same number to another sub-request.
-- It ends after 1 MiB or 1,000 results, because Redis does nothing else meanwhile.
-- Says: ok rows more
--   more = 0 if there is no further entry
--   rows = {entry, fields, origins}: an origin is the bit of a choice as hand_chosen wrote it, 0 = it is lost
-- @flags no-writes
-- @include lib/request_keys.lua
local joins = KEYS[11]  -- flow:{id}  hash  the origins of 256 sub-requests in each field
local after = ARGV[1]  -- the last entry that was read; 0-0 = none
local count = tonumber(ARGV[2])  -- the most to list, 1..1000
-- @include lib/chosen.lua

local MOST_BYTES, MOST_RESULTS = 1048576, 1000  -- of one page

if not count or count < 1 or count > 1000 then
  return redis.error_reply("BADCOUNT a page of 1 to 1000 entries is expected")
end
if not string.find(after, "^%d+%-%d+$") then
  return redis.error_reply("BADARGUMENT list_chosen wants the id of an entry")
end
local listed, size, found = {}, 0, 0
while #listed < count and size < MOST_BYTES and found < MOST_RESULTS do
  local from = "(" .. after
  local entry = redis.call("XRANGE", results, from, "+", "COUNT", 1)[1]
  if not entry then
    return {"ok", listed, 0}
  end
  local fields, numbers = entry[2], {}
  for at = 1, #fields, 2 do
    local number = string.match(fields[at], "^(%d+):")
    numbers[#numbers + 1] = number and tonumber(number)
    size = size + #fields[at + 1]
  end
  listed[#listed + 1] = {entry[1], fields, read_origins(numbers)}
  after, found = entry[1], found + #numbers
end
return {"ok", listed, 1}
