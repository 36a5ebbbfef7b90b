-- land: pushes a batch of numbered messages to the target list, each number once. A batch whose first number is too high, or
-- whose messages differ from those that came under the same numbers, is refused: one of the two servers was set back.
-- An epoch ends when its source begins another one, and the target does not notice that. So of more than MOST_EPOCHS those go
-- whose last message came first.
-- Says: ok pushed | gap | diverged | wrongtype
-- @flags grows
local target = KEYS[1]  -- a list of a person
local landed = KEYS[2]  -- {<list>}:landed  hash  epoch -> <number of its last message>:<digest of all of them>:<ms when it came>
local now = ARGV[1]  -- ms, "" = server time
local epoch = ARGV[2]  -- of the source
local before = tonumber(ARGV[3])  -- the number before the first message
local chain = ARGV[4]  -- the digest of all messages up to that number
local messages = 5  -- ARGV[5...]  at most 1000, oldest first
local MOST = 1000
local MOST_EPOCHS = 1000
-- @include lib/core.lua

-- Makes room for an epoch that is new.
-- @rare
local function forget_oldest()
  local found, epochs = redis.call("HGETALL", landed), {}
  for i = 1, #found, 2 do
    epochs[#epochs + 1] = {name = found[i], came = tonumber(string.match(found[i + 1], "^%d+:%x*:(%d+)$") or 0)}
  end
  table.sort(epochs, function(a, b)
    return a.came < b.came
  end)
  for i = 1, #epochs - MOST_EPOCHS + 1 do
    redis.call("HDEL", landed, epochs[i].name)
  end
end

local count = #ARGV - messages + 1
if epoch == "" or not before or before < 0 or before ~= math.floor(before) or count < 1 or count > MOST then
  return redis.error_reply("BADARGUMENT land wants an epoch, a number, and 1 to " .. MOST .. " messages")
end
local kind = redis.call("TYPE", target).ok
if kind ~= "list" and kind ~= "none" then
  return {"wrongtype"}
end
local known = redis.call("HGET", landed, epoch)
local last, digest = string.match(known or "0:", "^(%d+):(%x*)")
last = tonumber(last)
if before > last then
  return {"gap"}
end
if before == last and chain ~= digest then
  return {"diverged"}
end
for i = 1, count do
  chain = redis.sha1hex(chain .. ARGV[messages + i - 1])
  if before + i == last and chain ~= digest then
    return {"diverged"}
  end
end
local first = last - before  -- so many of them are there
for i = first, count - 1 do
  redis.call("LPUSH", target, ARGV[messages + i])
end
if first < count then
  if not known then
    forget_oldest()
  end
  redis.call("HSET", landed, epoch, before + count .. ":" .. chain .. string.format(":%.0f", now_ms(now)))
end
return {"ok", math.max(0, count - first)}
