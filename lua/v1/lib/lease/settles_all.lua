-- Returns true if these are all that the lease was granted, and nothing of it was settled before. What stands in
-- the stream between its first and its last entry is then its own. So it is enough that the ids lie there and grow;
-- ids of equal length are ordered as text is. An id that is named twice or does not exist is found that way. An id
-- of another lease is not.
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

-- Stores the results of a small request that one lease did in one call. A stream takes 4 KiB for its first entry
-- and gives nothing back. So the results are a copy, which takes what it needs. They are first written to the key
-- of the counter, which a small request does not use and pour overwrites. The bodies stay until the end, because
-- any of these calls may be refused.
local function finish_few(state, worker, work)
  local first, count = work.first + work.done, work.done
  redis.call("UNLINK", counter)
  redis.call("XADD", counter, "*", "w", worker, unpack(work.args, first, first + 2 * count - 1))
  redis.call("COPY", counter, results, "REPLACE")
  state.left, state.done = 0, count
  return count
end
