-- restore_active: a request that nobody looks after stands in `active` again. Also on a full Redis, as nothing
-- of it would ever be drained. Whoever has entered it meanwhile knows better. Says: 1 | 0 (it is there)
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local id = ARGV[1]  -- request
local due = tonumber(ARGV[2])  -- ms; with a fraction, as the request was seen to exist

if not due then
  return redis.error_reply("BADARGUMENT restore_active wants a number for due")
end
return redis.call("ZADD", active, "NX", due, id)
