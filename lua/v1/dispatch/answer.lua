-- answer: hands over a worker's answer to an order, and removes the order. So an order goes only when its answer is there.
-- Says: ok | gone
--   gone: it was answered before, or has expired
-- @flags allow-oom
local orders = KEYS[1]  -- {queue}:orders:<host:port>  hash  order -> what to do, JSON
local answer = KEYS[2]  -- {queue}:answer:<order>  stream  the answer, which the asker reads
local order = ARGV[1]  -- hex
local text = ARGV[2]  -- JSON
local ttl = tonumber(ARGV[3])  -- ms that the answer waits for the asker

if order == "" or text == "" or not ttl or ttl < 1 or ttl % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT answer wants an id, a text, and a number for ttl")
end
if redis.call("HDEL", orders, order) == 0 then
  return {"gone"}
end
redis.call("XADD", answer, "*", "answer", text)
redis.call("PEXPIRE", answer, ttl)
return {"ok"}
