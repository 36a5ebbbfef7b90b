-- Returns true if the done ids are all entries of the lease, and none was settled before. A permit names its first and
-- last entry only if no entry of another lease stands between them. So it is enough to check the number of ids, the
-- first, the last, and that they grow; ids of equal length are ordered as text is. The check finds an id that is named
-- twice or lies outside. An id that no entry has may pass: XACK does not acknowledge it.
local function is_whole(permit, work)
  local args, first = work.args, work.first
  if work.done ~= permit.owed then
    return false
  end
  local before = args[first]
  for i = first + 1, first + work.done - 1 do
    local id = args[i]
    if #id < #before or (#id == #before and id <= before) then
      return false
    end
    before = id
  end
  return args[first] == permit.first and before == permit.last
end

-- Stores the results of a small request that one lease did in one call. A stream allocates 4 KiB for its first entry
-- and never frees a part. A copy of it takes only what it needs. So the results are written to the key of the counter,
-- which a small request does not use and pour overwrites, and are then copied to `out`. The bodies stay until the end,
-- because Redis may refuse any of these calls.
local function finish_few(state, worker, work)
  local first, count = work.first + work.done, work.done
  redis.call("UNLINK", counter)
  redis.call("XADD", counter, "*", "w", worker, unpack(work.args, first, first + 2 * count - 1))
  redis.call("COPY", counter, results, "REPLACE")
  state.left, state.done = 0, count
  return count
end
