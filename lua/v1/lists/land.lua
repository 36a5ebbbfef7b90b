-- land: pushes a batch of numbered messages to the target list, each number once. A batch whose first number is too high, or
-- whose messages differ from those that came under the same numbers, is refused: one of the two servers was set back.
-- Says: ok pushed | gap | diverged | wrongtype
-- @flags grows
local target = KEYS[1]  -- a list of a person
local landed = KEYS[2]  -- {<list>}:landed  hash  epoch -> <number of its last message>:<digest of all of them>
local epoch = ARGV[1]  -- of the source
local before = tonumber(ARGV[2])  -- the number before the first message
local chain = ARGV[3]  -- the digest of all messages up to that number
local messages = 4  -- ARGV[4...]  at most 1000, oldest first
local MOST = 1000

local count = #ARGV - messages + 1
if epoch == "" or not before or before < 0 or before ~= math.floor(before) or count < 1 or count > MOST then
  return redis.error_reply("BADARGUMENT land wants an epoch, a number, and 1 to " .. MOST .. " messages")
end
local kind = redis.call("TYPE", target).ok
if kind ~= "list" and kind ~= "none" then
  return {"wrongtype"}
end
local known = redis.call("HGET", landed, epoch) or "0:"
local last, digest = string.match(known, "^(%d+):(%x*)$")
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
  redis.call("HSET", landed, epoch, before + count .. ":" .. chain)
end
return {"ok", math.max(0, count - first)}
