-- stand_in: returns how a queue stands, for a program that takes sub-requests itself. If no worker beats, such a program
-- stands in for the leader: it holds the maintenance lock for a moment, and does what is due.
-- Says: ok leads now active_due delayed_due tick_due shards left paused_until audits rate
--   active_due, delayed_due, tick_due = 0: nothing is due; shards, left = as in set_shards
--   paused_until = when the pause of the queue ends, 0 = it is not paused; rate = as rate_queue wrote it, "" = none
--   audits = 1: the caller leads, and no audit began within the last rest_ms
-- @flags allow-oom
local workers = KEYS[1]  -- {queue}:workers  zset  worker -> last beat, ms
local active = KEYS[2]  -- {queue}:active  zset  request -> when to look at it next, ms
local delayed = KEYS[3]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local conf = KEYS[4]  -- {queue}:conf  hash  lock, lock_until, shards, left, paused_until, layout, audited, rate
local ticks = KEYS[5]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local firing = KEYS[6]  -- {queue}:firing  hash  see lib/queue.lua
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- of the program
local lock_ms = tonumber(ARGV[3])  -- ms the maintenance lock outlives its holder
local rest_ms = tonumber(ARGV[4])  -- ms between two audits
-- @include lib/core.lua
-- @include lib/queue.lua

if not lock_ms or not rest_ms then
  return redis.error_reply("BADARGUMENT stand_in wants numbers for lock_ms and rest_ms")
end
local row = redis.call("HMGET", conf, "lock", "lock_until", "shards", "left", "paused_until", "layout", "audited", "rate")
local refused = layout_error(row[6])
if refused then
  return refused
end
now = now_ms(now)
local due = active_due(now)
local delays = score_of(redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES"))
local tick = beat_ticks(now, false)
local beaten = tonumber(redis.call("ZRANGE", workers, -1, -1, "WITHSCORES")[2])
local is_served = beaten and math.abs(now - beaten) <= lock_ms
local is_used = due > 0 or delays > 0 or tick > 0
local leads = is_used and not is_served and may_lead(id, now, lock_ms, row[1], row[2])
local audits = false
if leads then
  lead(conf, id, now, lock_ms)
  tick = beat_ticks(now, true)
  audits = due > 0 and math.abs(now - (tonumber(row[7]) or 0)) >= rest_ms
  if audits then
    redis.call("HSET", conf, "audited", now)
  end
end
return {"ok", leads and 1 or 0, now, due, delays, tick, row[3] or "", row[4] or "", pause_end(row[5], now, leads), audits and 1 or 0,
  row[8] or ""}
