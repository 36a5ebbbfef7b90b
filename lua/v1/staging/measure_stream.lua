-- measure_stream: returns where a stream of results or of dead sub-requests begins and ends, and about how large it is. The
-- entries stay in Redis.
-- Says: = span
--   span = first, last, length, bytes; empty = there is no entry
-- @flags no-writes
local stream = KEYS[1]  -- out:{id} or dead:{id}  stream  what was settled, or is dead

local first = redis.call("XRANGE", stream, "-", "+", "COUNT", 1)[1]
local last = redis.call("XREVRANGE", stream, "+", "-", "COUNT", 1)[1]
if not first or not last then
  return {}
end
local bytes = 0
for _, entry in ipairs({first, last}) do
  for _, word in ipairs(entry[2]) do
    bytes = bytes + #word
  end
end
local length = redis.call("XLEN", stream)
return {first[1], last[1], length, math.floor(length * bytes / 2)}
