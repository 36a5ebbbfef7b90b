-- retire: moves ended requests from `active` to the completion log. The marker in `logged` keeps each of them to one
-- log entry, for any caller and any number of calls.
-- Says: = logged
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local logged = KEYS[2]  -- {queue}:logged  zset  <id>|<ending> -> when this marker may go, ms
local completed = KEYS[3]  -- {queue}:completed  stream  one entry per finished request
local conf = KEYS[4]  -- {queue}:conf  hash  waiting
local loads = KEYS[5]  -- {queue}:load  hash  request -> what it adds to what waits
local now = ARGV[1]  -- ms, "" = server time
local least = tonumber(ARGV[2])  -- ms a marker stays longer than the tombstone, at least
local longest = tonumber(ARGV[3])  -- ... and at most
local most = tonumber(ARGV[4])  -- about how many entries the log keeps
local endings = 5  -- ARGV[5...]  for each: request, and the eleven values of its summary (lib/state.lua)
-- @include lib/core.lua
-- @include lib/queue.lua
local SIZE, MOST = 12, 75

local size = #ARGV - endings + 1
if not least or not longest or not most or size == 0 or size % SIZE > 0 or size > MOST * SIZE then
  return redis.error_reply("BADARGUMENT retire wants three numbers, and 1 to 75 endings of 12 values")
end
for at = endings, #ARGV, SIZE do
  if not tonumber(ARGV[at + 10]) then
    return redis.error_reply("BADARGUMENT retire wants a number for how long a tombstone stays")
  end
end
now = now_ms(now)
local keep = {least = least, longest = longest, most = most}
local ended, refused = {}, nil
for at = endings, #ARGV, SIZE do
  local is_new
  is_new, refused = log_ending(now, ARGV[at], {unpack(ARGV, at + 1, at + 11)}, keep)
  if refused then
    break
  elseif is_new then
    ended[#ended + 1] = ARGV[at]
  end
end
drop_logged(now, ended)
return refused or #ended
