-- settle_messages: counts tracked messages as done or timed out, each once, and takes them off the list of ids. A message is
-- done if a consumer pushed its id to `finished` while it was tracked. An id leaves the list of ids when it is the oldest one;
-- until then it is in `settled`. So no call walks over the list. The caller names the ids at the ends of both lists.
-- Says: (done timed_out)
-- @flags allow-oom
local ids = KEYS[1]  -- <namespace>:message:ids  list  ids of messages that were handed over, newest first
local finished = KEYS[2]  -- <namespace>:message:done  list  ids, pushed by the consumers
local done_metrics = KEYS[3]  -- <namespace>:metrics:done  hash  count, sum and max, s
local timeout_metrics = KEYS[4]  -- <namespace>:metrics:timeout  hash  count
local settled = KEYS[5]  -- <namespace>:message:settled  set  ids that are counted and still in `ids`
local records = 6  -- KEYS[6...]  <namespace>:message:<id>  hashes with a TTL, one for each id below
local now = ARGV[1]  -- ms, "" = server time
local ended = tonumber(ARGV[2])  -- how many of the ids are the last ones of `finished`, from the end on; the others are of `ids`
local wanted = 3  -- ARGV[3...]  ids of messages, at most 1000
-- @include lib/core.lua

if #ARGV - wanted ~= #KEYS - records or #ARGV - wanted >= 1000 then
  return redis.error_reply("BADARGUMENT settle_messages wants one hash for each of at most 1000 ids")
end
if not ended or ended < 0 or ended > #ARGV - wanted + 1 then
  return redis.error_reply("BADARGUMENT settle_messages wants to know how many of its ids are finished")
end
local seconds = math.floor(now_ms(now) / 1000)
local done, timed_out = 0, 0
for i = 0, #ARGV - wanted do
  local id, is_finished = ARGV[wanted + i], i < ended
  local began, deadline, counted = unpack(redis.call("HMGET", KEYS[records + i], "timestamp", "deadline", "settled"))
  local took = seconds - (tonumber(began) or seconds)
  if is_finished then
    is_finished = redis.call("LINDEX", finished, -1) == id  -- else another process has taken it
    if is_finished then
      redis.call("RPOP", finished)
    end
    is_finished = is_finished and began
  end
  local is_over = i >= ended and seconds >= (tonumber(deadline) or 0)  -- also without a record
  if (is_finished or is_over) and not counted and redis.call("SADD", settled, id) == 1 then
    if began then
      redis.call("HSET", KEYS[records + i], "settled", seconds)
    end
    if is_finished then
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
for _ = 1, 1000 do
  local oldest = redis.call("LINDEX", ids, -1)
  if not oldest or redis.call("SREM", settled, oldest) == 0 then
    break
  end
  redis.call("RPOP", ids)
end
return {done, timed_out}
