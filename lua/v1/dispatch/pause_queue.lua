-- pause_queue: pauses a queue until a time or until it is resumed, or resumes it. Workers read this with their beats.
-- Says: (now paused_until)
--   both in ms, 0 = not paused
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  paused_until, paused_ms
local now = ARGV[1]  -- ms, "" = server time
local period = tonumber(ARGV[2])  -- ms from now on; 0 = resume
local longest = tonumber(ARGV[3])  -- ms; a period of it has no end, and it is stored as the time
-- @include lib/core.lua

if not period or not longest or period < 0 or period > longest or period % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT a whole number of ms is expected, 0 to resume")
end
now = now_ms(now)
local ends = 0
if period == 0 then
  redis.call("HDEL", conf, "paused_until", "paused_ms")
else
  ends = math.min(longest, now + period)
  redis.call("HSET", conf, "paused_until", string.format("%.0f", ends), "paused_ms", string.format("%.0f", period))
end
return {now, ends}
