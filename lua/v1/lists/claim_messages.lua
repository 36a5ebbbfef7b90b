-- claim_messages: moves messages from a list to its pending list, oldest first, until `most` are pending. A message in
-- `pending` waits for a hand-over by any process, so a repeat, or a process that died here, loses none.
-- Says: ok messages | wrongtype at
--   messages = the oldest pending ones, at most `most` and 1 MiB, oldest first; at = the index of a key, from 0, that holds no
--   list: nothing was changed
-- @flags allow-oom
local source = KEYS[1]  -- a list of a person; its oldest message is at the tail
local pending = KEYS[2]  -- list  messages that left the source and are not handed over
local most = tonumber(ARGV[1])  -- 1..1000
-- @include lib/lists.lua

if not most or most < 1 or most > 1000 then
  return redis.error_reply("BADCOUNT 1 to 1000 messages are expected")
end
local kinds = {redis.call("TYPE", source).ok, redis.call("TYPE", pending).ok}
for i, kind in ipairs(kinds) do
  if kind ~= "list" and kind ~= "none" then
    return {"wrongtype", i - 1}
  end
end
for _ = redis.call("LLEN", pending) + 1, most do
  if not redis.call("LMOVE", source, pending, "RIGHT", "LEFT") then
    break
  end
end
return {"ok", oldest_first(redis.call("LRANGE", pending, -most, -1))}
