-- claim_ticks: returns schedules whose tick is due, the earliest first, and notes that the caller begins to submit their requests.
-- If the clock went back, ticks that were set before may lie too far ahead: all that are not due become due now, so the
-- caller sets each anew by its line.
-- Says: (now next watched rows...)
--   next = when the next one after them is due, 0: none; watched = see lib/queue.lua
--   rows: name, tick in ms, definition ("" = it has none) of each, and when a caller began with this tick, 0 = none has
-- @flags allow-oom
local schedules = KEYS[1]  -- {queue}:schedules  hash  schedule -> its definition
local ticks = KEYS[2]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local firing = KEYS[3]  -- {queue}:firing  hash  see lib/queue.lua
local now = ARGV[1]  -- ms, "" = server time
local skip = tonumber(ARGV[2])  -- so many that are due are left out
local most = tonumber(ARGV[3])  -- schedules to return
-- @include lib/core.lua
-- @include lib/queue.lua
local TOGETHER = 1000

if not skip or not most or skip < 0 or most < 1 then
  return redis.error_reply("BADARGUMENT claim_ticks wants two counts")
end
now = now_ms(now)
if has_gone_back(now) then
  local ahead = redis.call("ZRANGEBYSCORE", ticks, now + 1, "+inf", "LIMIT", 0, TOGETHER)
  while #ahead > 0 do
    for _, schedule in ipairs(ahead) do
      redis.call("ZADD", ticks, string.format("%d", now), schedule)
    end
    ahead = redis.call("ZRANGEBYSCORE", ticks, now + 1, "+inf", "LIMIT", 0, TOGETHER)
  end
  redis.call("HSET", firing, ":ticked", string.format("%d", now))
end
local first = tonumber(redis.call("ZRANGE", ticks, 0, 0, "WITHSCORES")[2])
local next = redis.call("ZRANGEBYSCORE", ticks, now + 1, "+inf", "WITHSCORES", "LIMIT", 0, 1)
local reply = {now, tonumber(next[2]) or 0, ""}
if not first or first > now then
  return reply
end
reply[3] = watch(now, first)
local due = redis.call("ZRANGEBYSCORE", ticks, "-inf", now, "WITHSCORES", "LIMIT", skip, most)
for i = 1, #due, 2 do
  local schedule, tick = due[i], tonumber(due[i + 1])
  local of, began = begun(schedule)
  if of ~= tick then
    began = 0
    note_begun(schedule, tick, now)
  end
  for _, part in ipairs({schedule, tick, redis.call("HGET", schedules, schedule) or "", began}) do
    reply[#reply + 1] = part
  end
end
return reply
