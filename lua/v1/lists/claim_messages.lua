-- claim_messages: moves messages from a list to its pending list, oldest first, until `most` are pending. A message in
-- `pending` waits for a hand-over by any process, so a repeat, or a process that died here, loses none.
-- Says: = messages
--   the oldest pending messages, at most `most` and 1 MiB, oldest first
-- @flags allow-oom
local source = KEYS[1]  -- a list of a person; its oldest message is at the tail
local pending = KEYS[2]  -- list  messages that left the source and are not handed over
local most = tonumber(ARGV[1])  -- 1..1000
-- @include lib/lists/oldest_first.lua

if not most or most < 1 or most > 1000 then
  return redis.error_reply("BADCOUNT 1 to 1000 messages are expected")
end
for _ = redis.call("LLEN", pending) + 1, most do
  if not redis.call("LMOVE", source, pending, "RIGHT", "LEFT") then
    break
  end
end
return oldest_first(redis.call("LRANGE", pending, -most, -1))
