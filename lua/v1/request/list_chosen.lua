-- list_chosen: returns the next entries of `out` of a request whose sub-requests were chosen, with the origin of each of
-- their results. Both are read in one call, because a failover may give the same number to another sub-request.
-- Says: = rows
--   rows = {entry, fields, origins}: an origin is the bit of a choice as hand_chosen wrote it, 0 = it is lost
-- @flags no-writes
-- @include lib/request_keys.lua
local joins = KEYS[11]  -- flow:{id}  hash  the origins of 256 sub-requests in each field
local after = ARGV[1]  -- the last entry that was read; 0-0 = none
local count = tonumber(ARGV[2])  -- the most to list, 1..1000
-- @include lib/chosen.lua

if not count or count < 1 or count > 1000 then
  return redis.error_reply("BADCOUNT a page of 1 to 1000 entries is expected")
end
if not string.find(after, "^%d+%-%d+$") then
  return redis.error_reply("BADARGUMENT list_chosen wants the id of an entry")
end
local listed = {}
for i, entry in ipairs(redis.call("XRANGE", results, "(" .. after, "+", "COUNT", count)) do
  local fields, numbers = entry[2], {}
  for at = 1, #fields, 2 do
    local number = string.match(fields[at], "^(%d+):")
    numbers[#numbers + 1] = number and tonumber(number)
  end
  listed[i] = {entry[1], fields, read_origins(numbers)}
end
return listed
