-- Settles results. They are stored and counted before XACK: otherwise a refused command could lose an acknowledged
-- result. Then the count is corrected to what XACK has acknowledged.
-- `work` is what read_work returns.
-- @include lib/entries/retry_queue.lua
-- @include lib/lease/count_down.lua
local MOST = 980  -- arguments of one call; the house rule is 1,000

-- Returns what the lease still owes: id -> delivery count. A settled id is removed, so it
-- counts once. An id of another lease is never among them.
local function owed_by(consumer)
  local owed = {}
  for _, entry in ipairs(pending_of(consumer)) do
    owed[entry[1]] = entry[4]
  end
  return owed
end

local function acknowledge(state, worker, work)
  local args, first, count, stored = work.args, work.first, work.done, {}
  local last = first + 3 * count - 1
  check_acknowledge()
  for from = first + count, last, MOST do
    stored[#stored + 1] =
      redis.call("XADD", results, "*", "w", worker, unpack(args, from, math.min(last, from + MOST - 1)))
  end
  local acked = count_down(state, count, stored, nil, unpack(args, first, first + count - 1))
  state.done = state.done + acked
  if state.left ~= 0 then  -- else finish deletes the stream
    redis.call("XDEL", stream, unpack(args, first, first + count - 1))
  end
  return acked
end

local function acknowledge_each(state, worker, work, kept)
  local args, first, acked = work.args, work.first, 0
  check_acknowledge()
  for _, i in ipairs(kept) do
    local pair = first + work.done + 2 * i
    local stored = redis.call("XADD", results, "*", "w", worker, args[pair], args[pair + 1])
    acked = acked + count_down(state, 1, {stored}, nil, args[first + i])
    redis.call("XDEL", stream, args[first + i])
  end
  state.done = state.done + acked
  return acked
end

local function settle_done(state, worker, owed, work)
  local kept, count = {}, work.done
  for i = 0, count - 1 do
    local id = work.args[work.first + i]
    if owed[id] then
      owed[id] = nil
      kept[#kept + 1] = i
    end
  end
  if #kept == 0 then
    return 0
  end
  local settle = #kept == count and acknowledge or acknowledge_each
  return settle(state, worker, work, kept)
end
