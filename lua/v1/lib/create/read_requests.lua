-- Reads the requests that submit creates: for each, from args[at] on, its digest, the number of its bodies and the bodies.
-- If each sub-request has an id, the text of the ids counts as the last body.
-- @include lib/create/policy.lua
-- @include lib/create/extras.lua
-- @include lib/entries/add_entries.lua
-- @include lib/ids/distinct.lua

-- Returns a list of what enqueue takes as `new`, or nil and the refusal. `terms`: what the requests have in common.
local function read_requests(args, at, count, terms)
  local policy, refused = read_policy(terms.policy)
  local extras
  if policy then
    extras, refused = read_extras(terms.extras)
  end
  if refused then
    return nil, refused
  end
  local found = {}
  for i = 1, count do
    local bodies = tonumber(args[at + 1])
    local last = at + 1 + (bodies or 0)
    if not bodies or bodies < 0 or last > #args then
      return nil, redis.error_reply("BADARGUMENT submit wants a digest, the number of bodies and the bodies of each request")
    end
    local new = {queue = terms.queue, policy = policy, digest = args[at], open_ms = terms.open_ms,
      extras = extras, shards = "", list = args, first = at + 2, last = last}
    refused = extras.distinct and read_ids(new) or entry_error(new.first, new.last)
    if refused then
      return nil, refused
    end
    found[i], at = new, last + 1
  end
  if at <= #args then
    return nil, redis.error_reply("BADARGUMENT submit wants as many requests as their count")
  end
  return found
end
