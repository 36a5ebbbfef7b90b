-- order: leaves an order for one worker, which reads it when the count of orders has grown.
-- Says: ok | full | answered
--   full: `most` orders wait for this worker already; answered: a repeat, whose answer is there
-- @flags allow-oom
local orders = KEYS[1]  -- {queue}:orders:<host:port>  hash  order -> what to do, JSON
local conf = KEYS[2]  -- {queue}:conf  hash  orders
local answer = KEYS[3]  -- {queue}:answer:<order>  stream  see answer
local order = ARGV[1]  -- hex, drawn by the caller
local text = ARGV[2]  -- JSON
local ttl = tonumber(ARGV[3])  -- ms that an order waits for its worker
local most = tonumber(ARGV[4])  -- orders of one worker

if order == "" or text == "" or not ttl or ttl < 1 or ttl % 1 ~= 0 or not most then
  return redis.error_reply("BADARGUMENT order wants an id, a text, and numbers for ttl and most")
end
if redis.call("EXISTS", answer) == 1 then
  return {"answered"}
end
if redis.call("HEXISTS", orders, order) == 0 then
  if redis.call("HLEN", orders) >= most then
    return {"full"}
  end
  redis.call("HINCRBY", conf, "orders", 1)
end
redis.call("HSET", orders, order, text)
redis.call("PEXPIRE", orders, ttl)
return {"ok"}
