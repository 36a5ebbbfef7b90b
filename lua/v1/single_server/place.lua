-- place: announces a request in the queue that has the fewest unfinished requests, the first one of those with as few, where
-- one server has all keys. So the next request counts it, before it exists. A repeat finds the same queue.
-- Says: (at score)
--   at = the index of the queue, from 0; score = of the intent, "" = the request exists already
-- @flags grows
local request = KEYS[1]  -- req:{id}  hash  queue
local actives = 2  -- KEYS[2...]  {queue}:active  zset  request -> when to look at it next, ms; one for each queue
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- request
local grace = tonumber(ARGV[3])  -- ms until the auditor looks
local queues = 4  -- ARGV[4...]  the names of the queues
-- @include lib/core.lua
local MOST = 100

local count = #KEYS - actives + 1
if id == "" or not grace or grace < 1 or count < 1 or count > MOST or #ARGV - queues + 1 ~= count then
  return redis.error_reply("BADARGUMENT place wants a request, ms, and a name for each of 1 to " .. MOST .. " queues")
end
local home = redis.call("HGET", request, "queue")
for i = 0, count - 1 do
  if home == ARGV[queues + i] then
    return {i, ""}
  end
end
local best, fewest
for i = 0, count - 1 do
  local known = redis.call("ZSCORE", KEYS[actives + i], id)
  if known then
    return {i, known}
  end
  local length = redis.call("ZCARD", KEYS[actives + i])
  if not best or length < fewest then
    best, fewest = i, length
  end
end
local score = string.format("%.0f", now_ms(now) + grace)
redis.call("ZADD", KEYS[actives + best], score, id)
return {best, score}
