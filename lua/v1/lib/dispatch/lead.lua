-- Who leads the maintenance of a queue, and what is due in it.
local AHEAD = 120000  -- ms; no check of a request lies farther ahead, unless there are very many requests

-- If the clock went back, the lock may end later than anyone could set it now. Such a lock is void, because its holder may
-- be dead.
local function may_lead(id, now, lock_ms, holder, lock_until)
  local ends = tonumber(lock_until or 0)
  return holder == id or ends < now or ends > now + lock_ms
end

local function lead(conf, id, now, lock_ms)
  redis.call("HSET", conf, "lock", id, "lock_until", now + lock_ms)
end

-- Returns the score in a reply of ZRANGE with one member; 0 = there is none.
local function score_of(found)
  return tonumber(found[2]) or 0
end

-- Returns when the pause of the queue ends; 0 = it is not paused. If the clock went back, the pause would last for too
-- long: a leader lets it begin anew.
local function pause_end(paused_until, now, leads)
  local ends = tonumber(paused_until) or 0
  if leads and ends > now then
    local period = tonumber(redis.call("HGET", conf, "paused_ms"))
    if period and ends > now + period then
      ends = now + period
      redis.call("HSET", conf, "paused_until", string.format("%.0f", ends))
    end
  end
  return ends > now and ends or 0
end

-- Returns when the first entry of `active` is due; 0 = there is none. If it lies too far ahead, the clock went back, and it
-- is due now.
local function active_due(now)
  local due = score_of(redis.call("ZRANGE", active, 0, 0, "WITHSCORES"))
  if due > now + AHEAD and due > now + 10 * redis.call("ZCARD", active) then
    return now
  end
  return due
end
