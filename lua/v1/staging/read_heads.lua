-- read_heads: returns a page of a request's results without their bodies, which may be big.
-- Says: = entries
--   entries = a list of {id, worker, head, ...}, each what one call settled; an empty list = no more
-- @flags no-writes
local results = KEYS[1]  -- out:{id}  stream  what each call settled: w, the worker, then (head, body) pairs
local first = ARGV[1]  -- id of an entry, or -
local last = ARGV[2]  -- id of an entry, or +
local count = tonumber(ARGV[3])  -- the most entries, 1..1000

if not count or count < 1 or count > 1000 then
  return redis.error_reply("BADCOUNT a page of 1 to 1000 entries of results is expected")
end
if (not string.match(first, "^%d+%-%d+$") and first ~= "-") or (not string.match(last, "^%d+%-%d+$") and last ~= "+") then
  return redis.error_reply("BADARGUMENT read_heads wants the ids of two entries, or - and +")
end
local entries = redis.call("XRANGE", results, first, last, "COUNT", count)
for i, entry in ipairs(entries) do
  local found = {entry[1], entry[2][2]}  -- the value of w
  for at = 3, #entry[2], 2 do
    found[#found + 1] = entry[2][at]
  end
  entries[i] = found
end
return entries
