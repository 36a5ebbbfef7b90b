-- retire: an ended request leaves `active` and enters the completion log, once. The marker in
-- `logged` decides that, whoever calls and however often. Says: 1 (logged now) | 0 (was logged)
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local logged = KEYS[2]  -- {queue}:logged  zset  <id>|<born> -> when this marker may go, ms
local completed = KEYS[3]  -- {queue}:completed  stream  one entry per finished request
local conf = KEYS[4]  -- {queue}:conf  hash  waiting
local loads = KEYS[5]  -- {queue}:load  hash  request -> what it adds to what waits
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- request
local born = ARGV[3]  -- ms; with the id it names this life of the request
local keep_ms = tonumber(ARGV[4])  -- ms the marker stays: longer than any tombstone
local most = tonumber(ARGV[5])  -- about how many entries the log keeps
local fields = 6  -- ARGV[6...]  field, value pairs of the entry
-- @include lib/now_ms.lua
-- @include lib/loads.lua

if not keep_ms or not most or (#ARGV - fields + 1) % 2 ~= 0 then
  return redis.error_reply("BADARGUMENT retire wants numbers for keep_ms and most, and pairs")
end
now = now_ms(now)
if redis.call("ZADD", logged, "NX", now + keep_ms, id .. "|" .. born) == 0 then
  return 0  -- and `active` is left alone: it may hold a new life of this id
end
redis.call("ZREM", active, id)
change_load(id, read_load(id), nil)
redis.call("XADD", completed, "MAXLEN", "~", most, "*", "id", id, unpack(ARGV, fields))
for _, old in ipairs(redis.call("ZRANGEBYSCORE", logged, "-inf", now, "LIMIT", 0, 10)) do
  redis.call("ZREM", logged, old)
end
return 1
