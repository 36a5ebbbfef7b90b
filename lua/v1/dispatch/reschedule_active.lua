-- reschedule_active: sets when to look at requests next. An entry that was moved since stays.
-- Says: = moved
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local rows = 1  -- ARGV[1...]  request, the score that was looked at, when to look: with a fraction if it was seen to exist
local MOST = 300

if #ARGV > 3 * MOST then
  return redis.error_reply("BADARGUMENT reschedule_active wants at most " .. MOST .. " rows of three")
end
for i = rows, #ARGV, 3 do
  if not tonumber(ARGV[i + 2]) then  -- also of a row that is cut off
    return redis.error_reply("BADARGUMENT reschedule_active wants a number for when to look")
  end
end
local count = 0
for i = rows, #ARGV, 3 do
  local id, seen = ARGV[i], tonumber(ARGV[i + 1])
  if seen and tonumber(redis.call("ZSCORE", active, id)) == seen then
    redis.call("ZADD", active, ARGV[i + 2], id)
    count = count + 1
  end
end
return count
