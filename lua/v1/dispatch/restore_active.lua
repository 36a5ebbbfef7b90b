-- restore_active: adds a request that is missing in `active` again. It must work on a full Redis too, because the
-- request could not be drained otherwise. An entry that was made meanwhile stays.
-- Says: = restored
--   restored = 1, or 0 if it is there
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local id = ARGV[1]  -- request
local due = tonumber(ARGV[2])  -- ms; with a fraction, as the request was seen to exist

if not due then
  return redis.error_reply("BADARGUMENT restore_active wants a number for due")
end
return redis.call("ZADD", active, "NX", due, id)
