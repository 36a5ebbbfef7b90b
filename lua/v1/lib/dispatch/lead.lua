-- Who leads the maintenance of a queue, and what is due in it.

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

-- Returns when the pause of the queue ends; 0 = it is not paused.
local function pause_end(paused_until, now)
  local ends = tonumber(paused_until) or 0
  return ends > now and ends or 0
end
