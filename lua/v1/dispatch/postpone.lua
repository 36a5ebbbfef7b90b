-- postpone: when to look at a request next, unless somebody has moved its entry since. Says: 1 | 0
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local id = ARGV[1]  -- request
local seen = tonumber(ARGV[2])  -- the score that was looked at
local due = tonumber(ARGV[3])  -- ms; with a fraction when the request was seen to exist

if not due then
  return redis.error_reply("BADARGUMENT postpone wants a number for due")
end
if not seen or tonumber(redis.call("ZSCORE", active, id)) ~= seen then
  return 0
end
redis.call("ZADD", active, due, id)
return 1
