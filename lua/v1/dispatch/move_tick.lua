-- move_tick: sets when a schedule is due next, if nothing has changed since the caller read it. Otherwise two leaders could
-- skip or repeat a tick, or set one by a line that was replaced. A schedule without a tick is paused. The note that a
-- leader has begun with the former tick goes. A caller that moves a tick to itself gives it up: it has submitted nothing.
-- Says: ok | moved | gone
--   moved: another caller was first
-- @flags allow-oom
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local firing = KEYS[3]  -- {queue}:firing  hash  see lib/queue.lua
local now = ARGV[1]  -- ms, "" = server time
local schedule = ARGV[2]  -- its name
local found = ARGV[3]  -- the SHA-1 of the definition that the caller read
local expected = ARGV[4]  -- ms of the tick that it has, "" = it is paused
local tick = ARGV[5]  -- ms of its next tick, "" = pause it
-- @include lib/core.lua
-- @include lib/queue.lua

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
local is_repeat = tonumber(present) == tonumber(tick)  -- after a lost reply
if not is_repeat and tonumber(present) ~= tonumber(expected) then
  return {"moved"}
end
now = now_ms(now)
local of, began = begun(schedule)
if of and of == tonumber(expected) then
  redis.call("HDEL", firing, schedule)
end
if is_repeat then
  return {"ok"}
end
if tick == "" then
  redis.call("ZREM", ticks, schedule)
else
  redis.call("ZADD", ticks, tick, schedule)
  if of and of == tonumber(expected) and tonumber(tick) <= now then  -- the rest of what the caller began with
    note_begun(schedule, tonumber(tick), began)
  end
end
note_ticked(now)
return {"ok"}
