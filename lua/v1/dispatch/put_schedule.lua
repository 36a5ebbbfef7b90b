-- put_schedule: writes the definition of a schedule, if it is still the one that the caller read. A new schedule begins
-- with the tick. An existing one takes it only if it is not paused; without a tick it keeps its own.
-- Says: ok | changed
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local firing = KEYS[3]  -- {queue}:firing  hash  see lib/queue.lua
local now = ARGV[1]  -- ms, "" = server time
local schedule = ARGV[2]  -- its name
local found = ARGV[3]  -- the SHA-1 of the definition that the caller read, "" = there was none
local definition = ARGV[4]  -- JSON
local tick = ARGV[5]  -- ms of the next tick, "" = the one it has
-- @include lib/core.lua
-- @include lib/queue.lua

if definition == "" or (tick == "" and found == "") or (tick ~= "" and not tonumber(tick)) then
  return redis.error_reply("BADARGUMENT put_schedule wants a definition, and a tick for a new schedule")
end
local stored = redis.call("HGET", schedules, schedule)
-- A repeat after a lost reply has nothing left to do.
if stored == definition and (tick == "" or tonumber(redis.call("ZSCORE", ticks, schedule) or "") == tonumber(tick)) then
  return {"ok"}
end
if (stored and redis.sha1hex(stored) or "") ~= found then
  return {"changed"}
end
redis.call("HSET", schedules, schedule, definition)
if tick ~= "" then
  redis.call("ZADD", ticks, stored and "XX" or "CH", tick, schedule)
  note_ticked(now_ms(now))
end
return {"ok"}
