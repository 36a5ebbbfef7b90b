-- register_worker: registers a worker. If another process beats under its name, the name is refused. If the last beat of
-- the name is late, the name is taken over. A beat as far ahead counts as late, because the clock went back. The release of
-- the users' code that the worker runs is noted: see lib/task_stats.lua.
-- Says: ok | taken host pid
-- @flags allow-oom
local workers = KEYS[1]  -- {queue}:workers  zset  worker -> last beat, ms
local worker = KEYS[2]  -- {queue}:worker:<host:port>  hash  host, pid, started, renewed
local conf = KEYS[3]  -- {queue}:conf  hash  layout, releases
local stats = KEYS[4]  -- {queue}:tasks  hash  <task>[\t<release>]:<what> -> number
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- host:port
local host = ARGV[3]  -- where it runs: hostname, boot id, network namespace
local pid = ARGV[4]  -- its supervisor
local started = ARGV[5]  -- ms; differs from that of the life before
local ttl = tonumber(ARGV[6])  -- ms the record outlives its last beat
local late = tonumber(ARGV[7])  -- ms after which a beat is late
local release = ARGV[8]  -- of the users' code, "" = it has none
-- @include lib/core.lua
-- @include lib/task_stats.lua

if not ttl or not late then
  return redis.error_reply("BADARGUMENT register_worker wants numbers for ttl and late")
end
if string.find(release, "[%s:]") then
  return redis.error_reply("BADARGUMENT register_worker wants a release without spaces and colons")
end
local layout = redis.call("HGET", conf, "layout")
local refused = layout_error(layout)
if refused then
  return refused
end
now = now_ms(now)
local other = redis.call("HMGET", worker, "started", "renewed", "host", "pid")
if other[1] and other[1] ~= started and math.abs(now - tonumber(other[2] or 0)) <= late then
  return {"taken", other[3] or "", other[4] or ""}
end
redis.call("DEL", worker)
redis.call("HSET", worker, "host", host, "pid", pid, "started", started, "renewed", now)
redis.call("PEXPIRE", worker, ttl)
redis.call("ZADD", workers, now, id)
if not layout then
  redis.call("HSET", conf, "layout", LAYOUT)
end
if release ~= "" then
  note_release(conf, stats, release, now)
end
return {"ok"}
