-- What waits in a queue that has a bound: loads[id] = "<admitted>:<chunk>:<settled>". These are the number of
-- sub-requests up to the last admitted chunk, that chunk's number, and how many sub-requests were settled by the
-- last report. `waiting` in conf is the sum of admitted - settled: a script that changes one must change the other.
local function read_load(id)
  local text = redis.call("HGET", loads, id)
  if not text then
    return nil
  end
  local admitted, chunk, settled = string.match(text, "^(%d+):(%d+):(%d+)$")
  return {admitted = tonumber(admitted), chunk = tonumber(chunk), settled = tonumber(settled)}
end

local function weight(load)
  return load and math.max(0, load.admitted - load.settled) or 0
end

-- `after` replaces `before`; nil = the request counts no more.
local function change_load(id, before, after)
  if after then
    redis.call("HSET", loads, id, after.admitted .. ":" .. after.chunk .. ":" .. after.settled)
  elseif before then
    redis.call("HDEL", loads, id)
  end
  local more = weight(after) - weight(before)
  if more ~= 0 then
    redis.call("HINCRBY", conf, "waiting", more)
  end
end
