-- settle_messages: counts tracked messages as done or timed out, each once, and takes them off the list of ids. A message is
-- done if a consumer pushed its id to `finished` while it was tracked.
-- Says: (done timed_out)
-- @flags allow-oom
local ids = KEYS[1]  -- <namespace>:message:ids  list  ids of messages that are tracked, newest first
local finished = KEYS[2]  -- <namespace>:message:done  list  ids, pushed by the consumers
local done_metrics = KEYS[3]  -- <namespace>:metrics:done  hash  count, sum and max, s
local timeout_metrics = KEYS[4]  -- <namespace>:metrics:timeout  hash  count
local records = 5  -- KEYS[5...]  <namespace>:message:<id>  hashes with a TTL, one for each id below
local now = ARGV[1]  -- ms, "" = server time
local wanted = 2  -- ARGV[2...]  ids of messages, at most 1000
-- @include lib/core/now_ms.lua

if #ARGV - wanted ~= #KEYS - records or #ARGV - wanted >= 1000 then
  return redis.error_reply("BADARGUMENT settle_messages wants one hash for each of at most 1000 ids")
end
local seconds = math.floor(now_ms(now) / 1000)
local done, timed_out = 0, 0
for i = 0, #ARGV - wanted do
  local is_finished = redis.call("LREM", finished, 0, ARGV[wanted + i]) > 0
  local began, deadline = unpack(redis.call("HMGET", KEYS[records + i], "timestamp", "deadline"))
  local took = seconds - (tonumber(began) or seconds)
  local is_over = seconds >= (tonumber(deadline) or 0)  -- also without a record
  if (is_finished or is_over) and redis.call("LREM", ids, 0, ARGV[wanted + i]) > 0 then
    if is_finished and began then
      done = done + 1
      redis.call("HINCRBY", done_metrics, "count", 1)
      redis.call("HINCRBY", done_metrics, "sum", took)
      if took >= tonumber(redis.call("HGET", done_metrics, "max") or 0) then
        redis.call("HSET", done_metrics, "max", took)
      end
    else
      timed_out = timed_out + 1
      redis.call("HINCRBY", timeout_metrics, "count", 1)
    end
  end
end
return {done, timed_out}
