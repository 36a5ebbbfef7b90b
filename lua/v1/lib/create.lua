-- Creates requests.
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/finish.lua
-- @include lib/gate.lua
-- @include lib/entries.lua
-- @include lib/ids.lua
-- @include lib/places.lua

-- ------------------------------------------------------------------ policy

-- The policy of a new request, as its producer sends it in one argument: ten whole numbers with colons between them,
--   limit:priority:attempts:backoff_min:backoff_max:lease_ms:retain_ms:time_limit_ms:durable:deadline_ms
-- The request's hash stores the first nine in the same form, see lib/state.lua. deadline_ms counts from now, 0 = none.
local TERMS = "^(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$"

local function is_whole(text, least, most)
  local number = string.find(text or "", "^%d+$") and tonumber(text)
  return number and number >= least and number <= most
end

-- Returns its numbers, or nil and the refusal.
local function read_policy(text)
  local limit, priority = string.match(text, "^([^:]*):([^:]*):")
  if not is_whole(priority, 0, 99) then
    return nil, redis.error_reply("BADPRIORITY a whole number from 0 to 99 is expected")
  end
  if not is_whole(limit, 1, 10000) then
    return nil, redis.error_reply("BADLIMIT a whole number from 1 to 10000 is expected")
  end
  local _, _, attempts, backoff_min, backoff_max, lease_ms, retain_ms, time_limit_ms, durable, deadline_ms =
    string.match(text, TERMS)
  if not attempts then
    return nil, redis.error_reply("BADARGUMENT ten whole numbers with colons between them are expected as the policy")
  end
  local n = tonumber
  return {limit = n(limit), priority = n(priority), attempts = n(attempts), backoff_min = n(backoff_min),
    backoff_max = n(backoff_max), lease_ms = n(lease_ms), retain_ms = n(retain_ms), time_limit_ms = n(time_limit_ms),
    durable = n(durable), deadline_ms = n(deadline_ms)}
end

-- ------------------------------------------------------------------ shards

-- Shards as text: numbers with commas between them; "" = the queue's own lanes.
local function are_shards(text)
  return text == "" or string.find(text or "x", "^%d[%d,]*$") ~= nil
end

-- ------------------------------------------------------------------ extras

-- What a producer asks for besides the policy, in one argument: lines "name=value", each name at most once.
--   tags     names with commas between them
--   limits   keys, each with how many leases the requests that name it may have together, see lib/limit_keys.lua
--   order    a key of which one request runs at a time, in the order of submission, see lib/limit_keys.lua
--   apart    1: these keys are in another slot than the request, as in a cluster
--   on_dead  stop: if it ends with dead sub-requests, it stops those behind it in this order
--   tenant   a name; share: how much time it gets beside other tenants, 1..999
--   delay    ms from now, or start: ms of this server's clock, before which nothing starts
--   rates    see lib/gate.lua
--   remember ms after the end that its hash stays, if that is longer than its results
--   ageing   ms: if nothing has started for so long, one slice goes first, see lib/gate.lua
--   after    "done:" or "end:" and lives with commas between them: the request starts when all of these are done, or ended.
--            A life is "<id>|<born>|<queue>", or "<id>|over" if it has ended as it should
--   flow     the flow, the number of this step, how many steps there are, and the step
--   by       who submitted it, as the server of the HTTP API names its callers
--   task     the task that all sub-requests call; or task and count in turn with tabs between them, an empty count is not known
--   redact   fields of arguments and results that views hide, with commas between them
--   trace    the context of the producer's span: a traceparent, and after a space a tracestate (W3C Trace Context)
--   distinct 1: each sub-request has an id, and comes once, see lib/ids.lua
--   feed     what this open request gets from others, see lib/gate.lua
--   unique   ms and a random text of the submission: another life may follow an ended one that began at least so long ago
local NOTHING = {}

-- Returns true if this text has one to three keys, each once and with a limit.
local function are_limits(text)
  local seen, count = {}, 0
  for part in string.gmatch(text .. ",", "([^,]*),") do
    local name, limit = string.match(part, "^([%w_.:/-]+)=([1-9]%d*)$")
    if not name or string.find(string.gsub(name, "^task/", ""), "^[^/]+$") == nil or seen[name] or #name > 128 or tonumber(limit) > 10000 then
      return false
    end
    seen[name], count = true, count + 1
  end
  return count <= 3
end

-- Returns the keys of a new request as its tokens have them. In its order key, which comes first, it has the last place: so what
-- has no turn is in no other line.
-- @rare
local function named_keys(extras, queue)
  local found, home = {}, "{" .. queue .. "}"
  if extras.apart then
    return "%%" .. extras.limits
  elseif extras.order then
    found[1] = string.format("!%s=%d", extras.order, redis.call("HINCRBY", home .. ":conf", "ticket", 1))
  end
  found[#found + 1] = extras.limits
  return queue .. "%" .. table.concat(found, ",")
end

-- @rare
local function parse_extras(text)
  local patterns = {limits = "^[%w_.:/-]+=[1-9]%d*[%w_.:/=,-]*$", order = "^[%w_.:-]+$", apart = "^1$", on_dead = "^stop$", redact = "^[%w_.:-][%w_.:,-]*$", distinct = "^1$", unique = "^%d+:%x+$", tags = "^[%w_.:-][%w_.:,-]*$", tenant = "^[%w_.:-]+$", share = "^[1-9]%d?%d?$", delay = "^%d+$", start = "^%d+$",
    ageing = "^[1-9]%d*$", remember = "^[1-9]%d*$", flow = "^[%w_.:-]+ %d+ %d+ [%w_.:-]+$", feed = "^%l+ [%w_.:,-]+ [%l,]+ [%w_.:-]+ %d+ ?[%x.]*$", after = "^%l+:[%w_.:-][%w_.:,|-]*$",
    rates = "^%d+ ", by = "^[%w_.:-]+$", task = "^[^%c][^\n]*$", trace = "^%x%x%-%x+%-%x+%-%x%x ?[!-~]*$"}
  local found = {}
  for line in string.gmatch(text .. "\n", "([^\n]*)\n") do
    local name, value = string.match(line, "^([%l_]+)=(.*)$")
    if not name or not patterns[name] or found[name] or not string.find(value, patterns[name])
      or name == "rates" and not are_rates(value) or name == "limits" and not are_limits(value) then
      return nil, redis.error_reply("BADARGUMENT lines name=value are expected as extras")
    end
    found[name] = value
  end
  if found.apart and (found.order or not found.limits) then
    return nil, redis.error_reply("BADARGUMENT keys of another slot are limits, and no order")
  end
  return found
end

-- Returns name -> value, or nil and the refusal. Then the text of its tasks, nil = it names none. Most requests have no other
-- extras, and pay only for this call.
local function read_extras(text)
  if text == "" then
    return NOTHING
  end
  local only = string.match(text, "^task=([^%c]+)$")
  if only then
    return NOTHING, nil, only
  end
  local found, refused = parse_extras(text)
  return found, refused, found and found.task
end

-- Returns the gate of a new request.
local function first_gate(extras, now, queue)
  if extras == NOTHING then
    return OPEN
  end
  local opens = tonumber(extras.start) or extras.delay and now + tonumber(extras.delay) or 0
  local wait = not extras.start and tonumber(extras.delay) or 0
  if extras.after then
    opens, wait = NEVER, 0
  end
  return {opens = opens > now and opens or 0, rates = extras.rates or "", is_limited = false, wait = wait,
    turn = extras.tenant and (extras.share or "1") .. ":" .. extras.tenant or "",
    keys = (extras.limits or extras.order) and named_keys(extras, queue) or ""}
end

-- Returns the fields of the hash that hold the extras, and how many sub-requests were left out, if any may be.
-- @rare
local function extra_fields(extras, gate, left)
  local fields = {}
  for _, name in ipairs({"tags", "tenant", "share", "ageing", "after", "flow", "feed", "by", "trace", "order", "on_dead", "task", "redact"}) do
    if extras[name] then
      fields[#fields + 1], fields[#fields + 2] = name, extras[name]
    end
  end
  if gate.opens > 0 or gate.rates ~= "" or gate.turn ~= "" or gate.keys ~= "" then
    fields[#fields + 1], fields[#fields + 2] = "gate", gate_text(gate)
  end
  if left then
    fields[#fields + 1], fields[#fields + 2] = "left_out", left
  end
  return fields
end

-- ------------------------------------------------------------------ requests of a submission

-- Reads the requests that submit creates: for each, from args[at] on, its digest, the number of its bodies and the bodies.
-- If each sub-request has an id, the text of the ids counts as the last body.

-- Returns a list of what enqueue takes as `new`, or nil and the refusal. `terms`: what the requests have in common.
local function read_requests(args, at, count, terms)
  local policy, refused = read_policy(terms.policy)
  local extras, task
  if policy then
    extras, refused, task = read_extras(terms.extras)
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
      extras = extras, task = task, shards = "", list = args, first = at + 2, last = last}
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

-- ------------------------------------------------------------------ new request

-- How a request begins. `new` holds what its producer sent, see enqueue.
local function new_state(new, now)
  local policy = new.policy
  local state = {state = "active", limit = policy.limit, priority = policy.priority, attempts = policy.attempts,
    backoff_min = policy.backoff_min, backoff_max = policy.backoff_max, lease_ms = policy.lease_ms,
    retain_ms = policy.retain_ms, time_limit_ms = policy.time_limit_ms, durable = policy.durable,
    deadline = policy.deadline_ms > 0 and now + policy.deadline_ms or 0, born = now, seq = 0, queued = 0, high = 0,
    fresh = 0, total = 0, done = 0, dead = 0, open = new.open_ms > 0 and 1 or 0, few = 0, max_body = 0, last_ms = 0,
    sleep_due = 0, sleeper = "", free = "", held = 0, has_no_retries = true, shards = new.shards,
    gate = first_gate(new.extras, now, new.queue)}
  if new.extras.remember then
    state.remember = tonumber(new.extras.remember)
    state.known_ms = math.max(state.retain_ms, state.remember)
  end
  return state
end

-- Returns the policy as the request's hash has it. Requests that one call creates share it.
local function stored_policy(new, state)
  local policy = new.policy
  if policy.born ~= state.born then
    policy.born, policy.stored = state.born, policy_text(state)
  end
  return policy.stored
end

-- `chunk`: the first bodies are list[first..last] of it.
local function store_bodies(state, now, chunk)
  -- Keys whose hash is gone belong to no request: they may expire soon, or hold another life's results.
  if redis.call("EXISTS", stream, counter, permits, leases, retries, results, dead, few, errors) > 0 then
    redis.call("UNLINK", stream, counter, permits, leases, retries, results, dead, few, errors)
  end
  if state.open == 0 and are_few(chunk.list, chunk.first, chunk.last) then
    keep_few(state, now, chunk.list, chunk.first, chunk.last)
    state.left = state.total
    return
  end
  if chunk.last >= chunk.first then
    add_entries(state, now, chunk.list, chunk.first, chunk.last)
  end
  redis.call("XGROUP", "CREATE", stream, stream, "0", "MKSTREAM")
  redis.call("SET", counter, state.total + state.open)
  state.left = state.total + state.open
end

-- Stores each sub-request whose id is new; returns how many were left out. Only an open request keeps the ids, because
-- nothing is added to a sealed request.
-- @rare
local function store_distinct(state, now, new)
  local count = #new.own
  local wanted, ids = new_ones(nil, new.own, new.list, new.first)
  new.list, new.first, new.last = wanted, 1, #wanted
  if state.open == 0 then
    store_bodies(state, now, new)
  else
    drop_ids(new.ids)  -- another life may have left them
    with_ids(new.ids, ids, IDS_MS, store_bodies, state, now, new)
  end
  return count - #wanted
end

-- ------------------------------------------------------------------ enqueue

-- `new`: open_ms, shards, and the first chunk: list[first..last].
local function enqueue_error(new)
  if not new.open_ms then
    return redis.error_reply("BADARGUMENT a number is expected for open_ms")
  end
  if not are_shards(new.shards) then
    return redis.error_reply("BADSHARDS numbers with commas between them are expected")
  end
  return entry_error(new.first, new.last)
end

-- Returns why a new request cannot have its keys, or nil: a queue that is spread over shards has none, and a key in use has one
-- limit. A task's limit is none of its calls' business: while a deployment changes it, they bring the one or the other.
-- @rare
local function limits_error(new, shards)
  if shards and shards ~= "" then
    return redis.error_reply("REFUSED keys are not possible in a queue that is spread over shards: leave out "
      .. "`limits` and `order_key`, or bring its lanes together with `fairlane queue set --shards 0 --queue " .. new.queue .. "`")
  end
  local home = "{" .. new.queue .. "}"
  for _, key in ipairs(each_key(home, new.extras.limits or "")) do
    local limit = limit_in_force(home, key.name)
    if limit and limit ~= key.declared and string.sub(key.name, 1, 5) ~= "task/" then
      return redis.error_reply("REFUSED key " .. key.name .. " has the limit " .. limit .. " in queue " .. new.queue .. ", not "
        .. key.declared .. ": submit with " .. limit .. ", or change it with `fairlane key set " .. key.name .. " "
        .. key.declared .. " --queue " .. new.queue .. "`")
    end
  end
end

-- `new` has, besides what enqueue_error reads: queue, policy, digest, extras and task. `intent`: the score in `active` that announced
-- the request. `over`: an ending that is in the log, see lib/ids.lua: a new life may follow it.
local function enqueue(new, now, intent, over)
  local row = redis.call("HMGET", request, "state", "seen", "over")
  local former, refused
  if row[1] then
    former, refused = former_life(new, now, over)
  end
  if refused then
    return refused
  end
  local seen = tonumber(row[2] or -1)
  if seen >= intent then
    return {"late", seen}
  end
  if (new.extras.limits or new.extras.order) and not new.extras.apart then
    local wrong = limits_error(new, new.shards)
    if wrong then
      error(wrong.err, 0)
    end
    local home = "{" .. new.queue .. "}"
    redis.call("HSET", home .. ":conf", "has_keys", 1)  -- from now on the queue gets no shards
  end
  local state = new_state(new, now)
  if former then
    state.born, state.seq = math.max(now, former.born + 1), former.seq
  elseif row[3] then  -- the marker of a deleted life has its `born`
    state.born = math.max(now, tonumber(row[3]) + 1)
  end
  if new.extras.apart then  -- no token of an earlier life has such a g: what it left in keys, and a late acquire, name another
    state.seq = math.max(state.seq, 1000 * (state.born - 1))
  end
  local left = (new.own and store_distinct or store_bodies)(state, now, new)  -- first, because a full Redis must refuse before anything else is written
  if former or seen >= 0 then
    redis.call("DEL", request)  -- an abandoned life or marker, and its TTL
  end
  if state.open == 1 then
    redis.call("HSET", request, "open_until", now + new.open_ms)
  end
  if is_void(state.born, now, 0) then  -- the former life began before the clock went back
    redis.call("HSET", request, "began", string.format("%d", now))
  end
  local tokens = mint(state, now)
  local stored = stored_policy(new, state)
  if new.extras ~= NOTHING then
    if new.extras.order then
      take_place("{" .. new.queue .. "}", state.gate.keys)
    end
    save_state(state, "policy", stored, "queue", new.queue, "digest", new.digest,
      unpack(extra_fields(new.extras, state.gate, left)))
  elseif new.task then
    save_state(state, "policy", stored, "queue", new.queue, "digest", new.digest, "task", new.task)
  else
    save_state(state, "policy", stored, "queue", new.queue, "digest", new.digest)
  end
  if finish(state, now) then
    return {"ended", summary(state)}
  end
  return {"ok", tokens, state.born, left}
end

-- ------------------------------------------------------------------ intents

-- Leaves a trace of ids[first..last] in `active`; returns the reply of intend, or nil and an error.
local function intend(now, grace, above, ids, first, last)
  local known = redis.call("HMGET", conf, "max_waiting", "shards", "layout")
  local refused = layout_error(known[3])
  if refused then
    return nil, refused
  end
  local before = redis.call("ZMSCORE", active, unpack(ids, first, last))
  local least = math.max(above + 1, now + grace)  -- each intent is newer than all that the auditor has seen
  local announced = {tonumber(known[1] or 0) or 0, known[2] or ""}  -- a damaged bound is none
  local entries = {}
  for i, former in ipairs(before) do
    local score = least
    if former then
      score = math.max(math.floor(tonumber(former)) + 1, least)
    end
    entries[2 * i - 1], entries[2 * i] = score, ids[first + i - 1]
    announced[2 * i + 1], announced[2 * i + 2] = score, former or "0"
  end
  redis.call("ZADD", active, unpack(entries))
  return announced
end

-- ------------------------------------------------------------------ intents given up

-- Gives up the intents up to the score `seen`: enqueue then refuses them, and their producers must announce anew.
-- An abandoned life has the mark in its own hash. If there is no request, a marker with a TTL is left.
local function give_up(seen, ttl)
  local row = redis.call("HMGET", request, "seen", "state")
  redis.call("HSET", request, "seen", math.max(tonumber(row[1] or -1), math.floor(seen)))  -- no intent lies between
  if not row[2] or row[2] == "abandoned" then
    redis.call("HSET", request, "state", "abandoned")
    redis.call("PEXPIRE", request, ttl)
  end
end
