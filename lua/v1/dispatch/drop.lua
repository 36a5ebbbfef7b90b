-- drop: the abandoned intent leaves `active`, unless a producer has renewed it since. Says: 1 | 0
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local id = ARGV[1]  -- request
local seen = tonumber(ARGV[2])  -- the score that was abandoned

if tonumber(redis.call("ZSCORE", active, id)) ~= seen then
  return 0
end
return redis.call("ZREM", active, id)
