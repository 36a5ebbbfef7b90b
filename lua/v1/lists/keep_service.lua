-- keep_service: registers a service under its namespace, or renews its registration. A registration that has expired, or that
-- a person deleted, is not renewed: the service must end.
-- Says: ok | gone
-- @flags grows
local record = KEYS[1]  -- <namespace>:<id>  hash with a TTL  host, pid, started, renewed
local ids = KEYS[2]  -- <namespace>:ids  list  services, newest first
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- of the service
local is_new = ARGV[3]  -- "1" = register it
local expire = tonumber(ARGV[4])  -- s until a registration that is not renewed ends
local capacity = tonumber(ARGV[5])  -- the last index that `ids` keeps
local host = ARGV[6]  -- where it runs
local pid = ARGV[7]  -- its process id
-- @include lib/core.lua

if id == "" or not expire or expire < 1 or not capacity or capacity < 0 then
  return redis.error_reply("BADARGUMENT keep_service wants an id, seconds and the last index of the list")
end
local is_known = redis.call("EXISTS", record) == 1
if not is_known and is_new ~= "1" then
  return {"gone"}
end
local seconds = math.floor(now_ms(now) / 1000)
if not is_known then
  redis.call("HSET", record, "host", host, "pid", pid, "started", seconds)
  redis.call("LPUSH", ids, id)
  redis.call("LTRIM", ids, 0, capacity)
end
redis.call("HSET", record, "renewed", seconds)
redis.call("EXPIRE", record, expire)
return {"ok"}
