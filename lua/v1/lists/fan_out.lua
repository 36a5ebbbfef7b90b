-- fan_out: hands pending messages over, each to all lists or to the shortest of them. A message is pushed only if this call
-- removed it from `pending`. So several processes, and repeats, hand each message over exactly once. A tracked message whose id
-- has a record already stays pending: the call is a repeat, or the counter of ids began again.
-- Says: ok moved | wrongtype at
--   at = the index of a list key, from 0, that holds no list: nothing was changed
-- @flags grows
local pending = KEYS[1]  -- list  messages that left their source and are not handed over
local outs = 2  -- KEYS[2...]  lists that get the messages; if tracked also the list of ids, and two hashes for each message
local now = ARGV[1]  -- ms, "" = server time
local to = ARGV[2]  -- all | shortest
local count = tonumber(ARGV[3])  -- of the lists that get the messages
local service = ARGV[4]  -- the id of the service that tracks the messages, "" = they are not tracked
local timeout = tonumber(ARGV[5])  -- s until a tracked message must be done
local expire = tonumber(ARGV[6])  -- s until the hashes of a tracked message are deleted
local rows = 7  -- ARGV[7...]  messages; if tracked each with its id, its xid and the type of that
-- @include lib/core.lua
-- @include lib/lists.lua
local MOST_LISTS = 1000

local width = service == "" and 1 or 4
local messages = (#ARGV - rows + 1) / width
local hashes = count and count + 1  -- their place behind `outs`
if (to ~= "all" and to ~= "shortest") or not count or count < 1 or count > MOST_LISTS or messages < 1
  or messages ~= math.floor(messages) or not timeout or not expire or timeout < 1 or expire < 1
  or #KEYS ~= 1 + count + (width == 4 and 1 + 2 * messages or 0) then
  return redis.error_reply("BADARGUMENT fan_out wants lists, and messages of 1 or 4 values")
end
for i = 0, width == 4 and count or count - 1 do
  local kind = redis.call("TYPE", KEYS[outs + i]).ok
  if kind ~= "list" and kind ~= "none" then
    return {"wrongtype", i}
  end
end
local lengths = {}
for i = 0, to == "shortest" and count - 1 or -1 do
  lengths[i] = redis.call("LLEN", KEYS[outs + i])
end
local moved, seconds = 0, math.floor(now_ms(now) / 1000)
for i = 0, messages - 1 do
  local row = rows + i * width
  local record = hashes + 2 * i  -- the place of a tracked message's record; behind it is that of its xid
  local is_used = width == 4 and redis.call("EXISTS", KEYS[outs + record]) == 1
  if not is_used and redis.call("LREM", pending, -1, ARGV[row]) == 1 then
    moved = moved + 1
    if to == "shortest" then
      redis.call("LPUSH", KEYS[outs + take_shortest(lengths, count)], ARGV[row])
    else
      for each = 0, count - 1 do
        redis.call("LPUSH", KEYS[outs + each], ARGV[row])
      end
    end
    if width == 4 then
      redis.call("DEL", KEYS[outs + record + 1])
      redis.call("HSET", KEYS[outs + record], "timestamp", seconds, "xid", ARGV[row + 2], "deadline", seconds + timeout,
        "service", service)
      redis.call("EXPIRE", KEYS[outs + record], expire)
      redis.call("HSET", KEYS[outs + record + 1], "id", ARGV[row + 1], "type", ARGV[row + 3])
      redis.call("EXPIRE", KEYS[outs + record + 1], expire)
      redis.call("LPUSH", KEYS[outs + count], ARGV[row + 1])
    end
  end
end
return {"ok", moved}
