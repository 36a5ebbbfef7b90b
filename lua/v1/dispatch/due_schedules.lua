-- due_schedules: returns schedules whose tick is due, the earliest first, and when the next one after them is due.
-- Says: (now next rows...)
--   next = 0: none; rows: name, tick in ms and definition of each, "" = it has none
-- @flags no-writes
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local now = ARGV[1]  -- ms, "" = server time
local skip = tonumber(ARGV[2])  -- so many that are due are left out
local most = tonumber(ARGV[3])  -- schedules to return
-- @include lib/core.lua

if not skip or not most or skip < 0 or most < 0 then
  return redis.error_reply("BADARGUMENT due_schedules wants two counts")
end
now = now_ms(now)
local next = redis.call("ZRANGEBYSCORE", ticks, now + 1, "+inf", "WITHSCORES", "LIMIT", 0, 1)
local reply = {now, tonumber(next[2]) or 0}
local due = redis.call("ZRANGEBYSCORE", ticks, "-inf", now, "WITHSCORES", "LIMIT", skip, most)
for i = 1, #due, 2 do
  reply[#reply + 1] = due[i]
  reply[#reply + 1] = tonumber(due[i + 1])
  reply[#reply + 1] = redis.call("HGET", schedules, due[i]) or ""
end
return reply
