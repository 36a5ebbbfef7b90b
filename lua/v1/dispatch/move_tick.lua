-- move_tick: sets when a schedule is due next, if nothing has changed since the caller read it. Otherwise two leaders could
-- skip or repeat a tick, or set one by a line that was replaced. A schedule without a tick is paused.
-- Says: ok | moved | gone
--   moved: another caller was first
-- @flags allow-oom
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local schedule = ARGV[1]  -- its name
local found = ARGV[2]  -- the SHA-1 of the definition that the caller read
local expected = ARGV[3]  -- ms of the tick that it has, "" = it is paused
local tick = ARGV[4]  -- ms of its next tick, "" = pause it

if (expected ~= "" and not tonumber(expected)) or (tick ~= "" and not tonumber(tick)) then
  return redis.error_reply("BADARGUMENT move_tick wants ms for both ticks, or nothing")
end
local definition = redis.call("HGET", schedules, schedule)
if not definition then
  return {"gone"}
end
local present = redis.call("ZSCORE", ticks, schedule) or ""
if redis.sha1hex(definition) ~= found then
  return {"moved"}
end
if tonumber(present) == tonumber(tick) then
  return {"ok"}  -- a repeat after a lost reply
end
if tonumber(present) ~= tonumber(expected) then
  return {"moved"}
end
if tick == "" then
  redis.call("ZREM", ticks, schedule)
else
  redis.call("ZADD", ticks, tick, schedule)
end
return {"ok"}
