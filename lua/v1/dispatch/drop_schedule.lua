-- drop_schedule: removes a schedule. Requests that it has submitted stay.
-- Says: = removed
-- @flags allow-oom
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local firing = KEYS[3]  -- {queue}:firing  hash  see lib/queue.lua
local schedule = ARGV[1]  -- its name

redis.call("ZREM", ticks, schedule)
redis.call("HDEL", firing, schedule)
local removed = redis.call("HDEL", schedules, schedule)
if redis.call("EXISTS", schedules) == 0 then
  redis.call("UNLINK", firing)
end
return removed
