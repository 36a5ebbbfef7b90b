-- True when these are all that the lease was granted, of which nothing was settled before: what
-- stands in the stream between its first and its last entry is then its own, so it is enough that
-- the ids lie there and grow. (Of equal length, ids are ordered as text is.) A holder that names an id
-- of its own slice twice, or one of nobody, does not come here; one that names another's is not checked.
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

-- What one lease did of a small request, all at once. A stream takes 4 KiB for its first entry and
-- gives nothing back: so the results are a copy, which takes what it needs. They are first
-- written to the key of the counter, which a small request does not use and pour overwrites. The bodies stay
-- until the end, because any of these calls may be refused.
local function finish_few(state, worker, work)
  local first, count = work.first + work.done, work.done
  redis.call("UNLINK", counter)
  redis.call("XADD", counter, "*", "w", worker, unpack(work.args, first, first + 2 * count - 1))
  redis.call("COPY", counter, results, "REPLACE")
  state.left, state.done = 0, count
  return count
end
