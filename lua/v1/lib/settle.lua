-- XACK comes first everywhere: only what it acknowledged is counted, and a full Redis lets it pass.
local MOST = 980  -- arguments of one call; the house rule is 1,000

local function is_mine(id, consumer)
  local pending = redis.call("XPENDING", stream, stream, id, id, 1)
  return pending[1] and pending[1][2] == consumer, pending[1] and pending[1][4]
end

local function store_results(worker, first, last)
  for from = first, last, MOST do
    redis.call("XADD", results, "*", "w", worker, unpack(ARGV, from, math.min(last, from + MOST - 1)))
  end
end

-- One by one: after a partial completion a repeated call may name what is settled already.
local function settle_each(worker, consumer, first, count)
  local acked = 0
  for i = 0, count - 1 do
    local id = ARGV[first + i]
    if is_mine(id, consumer) and redis.call("XACK", stream, stream, id) == 1 then
      redis.call("XDEL", stream, id)
      local pair = first + count + 2 * i
      redis.call("XADD", results, "*", "w", worker, ARGV[pair], ARGV[pair + 1])
      acked = acked + 1
    end
  end
  return acked
end

-- At once: a lease without a partial completion still owes exactly what acquire gave it, since
-- nothing but its holder, the reaper and the end of the request can take an entry from it.
local function settle_done(state, permit, consumer, first, count)
  local acked = 0
  if count > 0 and (permit.partial == "1" or count > permit.owed) then
    acked = settle_each(permit.worker, consumer, first, count)
  elseif count > 0 then
    acked = redis.call("XACK", stream, stream, unpack(ARGV, first, first + count - 1))
    redis.call("XDEL", stream, unpack(ARGV, first, first + count - 1))
    store_results(permit.worker, first + count, first + 3 * count - 1)
  end
  if acked > 0 then
    redis.call("DECRBY", counter, acked)
    state.done = state.done + acked
  end
  return acked
end

-- retry, dead and release, one entry each; a retry on the last attempt is dead.
local function settle_others(state, now, permit, consumer, first)
  local settled = 0
  for i = first, #ARGV, 5 do
    local id, verdict, delay, head, error = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
    local mine, attempt = is_mine(id, consumer)
    if mine then
      settled = settled + 1
      if verdict == "release" then
        orphan(id, now, math.max(0, attempt - 1))
      elseif verdict == "retry" and attempt < state.attempts then
        orphan(id, now + delay, attempt)
      else
        bury(state, id, {head = head, error = error, worker = permit.worker,
          reason = verdict == "retry" and "attempts" or "rejected"})
      end
    end
  end
  return settled
end
