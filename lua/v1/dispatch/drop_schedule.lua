-- drop_schedule: removes a schedule. Requests that it has submitted stay.
-- Says: = removed
-- @flags allow-oom
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local schedule = ARGV[1]  -- its name

redis.call("ZREM", ticks, schedule)
return redis.call("HDEL", schedules, schedule)
