# Runs Sidekiq: the actions of actions.py, with one line of JSON as question and as answer.
# A worker is a process of its own, which sends the counts of its handler through a pipe.

require 'json'
require 'sidekiq'
require 'sidekiq/launcher'
require 'sidekiq/fetch'

BODY = 'x' * 100
URGENT = 'u' * 100
SPIN_S = 0.0001
TICK_S = 0.002
PAUSE_S = 0.01
CHUNK = 5000

SPEC = JSON.parse(ARGV[0])
CONCURRENCY = SPEC['concurrency'] || 1
PROCESSES = SPEC['processes'] || 1
CAP_S = SPEC['cap_s'] || 60
SIZES = SPEC['sizes'] || []

def now
  Process.clock_gettime(Process::CLOCK_MONOTONIC)
end

def body_of(tag)
  format('%06d', tag).ljust(100, 'x')
end

# ------------------------------------------------------------------ the worker process

BOARD = { 'count' => 0, 'first' => 0.0, 'busy' => 0.0, 'records' => [] }
LOCK = Mutex.new

class Handle
  include Sidekiq::Worker

  def perform(body)
    start = now
    case SPEC['handler']
    when 'stamp' then record(0, start, start)
    when 'urgent' then body.start_with?('u') ? record(0, start, start) : spin(start)
    when 'tagged'
      sleep(SPEC['ms'] / 1000.0)
      record(body[0, 6].to_i, start, now)
    when 'sleep' then sleep(SPEC['ms'] / 1000.0)
    end
    LOCK.synchronize do
      BOARD['first'] = start if BOARD['count'].zero?
      BOARD['count'] += 1
      BOARD['busy'] += now - start if SPEC['handler'] == 'sleep'
    end
  end

  def spin(start)
    nil while now - start < SPIN_S
  end

  def record(*cells)
    LOCK.synchronize { BOARD['records'] << cells }
  end
end

def connect
  Redis.silence_deprecations = true # because each call would print a warning
  Sidekiq.logger.level = Logger::FATAL
  Sidekiq.configure_client { |config| config.redis = { url: SPEC['url'] } }
  Sidekiq.redis = { url: SPEC['url'], size: CONCURRENCY + 5 }
end

# Urgent calls come first if the queues have a strict order. Otherwise the order is random.
def names
  ['urgent'] + (0...[1, SIZES.size].max).map { |tag| "q#{tag}" }
end

def work(pipe)
  connect
  strict = SPEC['action'] != 'fairness'
  options = Sidekiq.options.merge(queues: names, concurrency: CONCURRENCY, strict: strict)
  options[:fetch] = Sidekiq::BasicFetch.new(options)
  Sidekiq::Launcher.new(options).run
  sent = nil
  loop do
    sleep(0.005)
    message = LOCK.synchronize do
      next if BOARD['count'] == sent && BOARD['records'].empty?

      sent = BOARD['count']
      taken = BOARD.merge('at' => now, 'records' => BOARD['records'])
      BOARD['records'] = []
      taken
    end
    pipe.puts(JSON.generate(message)) if message
  end
end

# ------------------------------------------------------------------ the measuring process

$workers = []
$states = []
$records = []
$seen = []
$until = now + CAP_S

def start
  PROCESSES.times do |place|
    reader, writer = IO.pipe
    $workers << fork do
      reader.close
      work(writer)
    rescue Exception => e # rubocop:disable Lint/RescueException
      warn e.full_message
    ensure
      exit!(1)
    end
    writer.close
    $states << { 'count' => 0, 'first' => 0.0, 'busy' => 0.0 }
    Thread.new { reader.each_line { |line| receive(place, JSON.parse(line)) } }
  end
end

def receive(place, message)
  $records.concat(message.delete('records'))
  $states[place] = message
  $seen << [message['at'], counted, $states.sum { |state| state['busy'] }]
end

def counted
  $states.sum { |state| state['count'] }
end

def first_call
  $states.map { |state| state['first'] }.select(&:positive?).min
end

def left
  Sidekiq.redis { |redis| names.sum { |name| redis.llen("queue:#{name}") } }
end

def wait(tick = TICK_S, last = $until)
  until yield
    raise "not done after #{CAP_S} s" if now > last

    sleep(tick)
  end
end

def put(bodies, tag = 0)
  bodies.each_slice(1000) do |chunk|
    Sidekiq::Client.push_bulk('class' => Handle, 'queue' => "q#{tag}", 'args' => chunk.map { |b| [b] })
  end
end

def put_single(body, queue = 'q0')
  Sidekiq::Client.push('class' => Handle, 'queue' => queue, 'args' => [body])
end

# Submits in another process, because the workers must be forked before this one connects.
def apart
  pid = fork do
    connect
    yield
    exit!(0)
  end
  Process.wait(pid)
end

def fill
  apart do
    began = now
    rest = SPEC['n']
    while rest.positive? && now - began < (SPEC['fill_s'] || 1e9)
      put([BODY] * [rest, CHUNK].min)
      rest -= CHUNK
    end
  end
end

def submit
  connect
  began = now
  SPEC['single'] ? SPEC['n'].times { put_single(BODY) } : put([BODY] * SPEC['n'])
  seconds = now - began
  { seconds: seconds, n: left }
end

def drain
  fill if SPEC['fill']
  start
  connect
  wait do
    counted >= SPEC['n'] && (SPEC['partly'] || left.zero?)
  end
  finish = $seen.last[0]
  { first: first_call, end: finish, n: counted, waiting: SPEC['n'], stored: nil, seen: $seen }
end

def latency
  start
  connect
  asked = []
  (10 + SPEC['samples']).times do |number|
    sleep(PAUSE_S)
    asked << [now, nil]
    put_single(BODY)
    wait { $records.size > number }
  end
  { asked: asked.drop(10), starts: $records.drop(10).map { |record| record[1] } }
end

def urgent
  fill
  start
  connect
  waiting = left
  wait { counted >= [50, waiting / 4].min }
  asked = []
  last = now + CAP_S
  SPEC['samples'].times do |number|
    asked << now
    put_single(URGENT, 'urgent')
    wait(TICK_S, last + 1) { $records.size > number || now > last }
    break if $records.size <= number

    sleep(PAUSE_S)
  end
  { asked: asked, starts: $records.map { |record| record[1] }, waiting: waiting, left: left }
end

def fairness
  apart { SIZES.each_with_index { |size, tag| put([body_of(tag)] * size, tag) } }
  start
  wait(0.2) do
    counts = $records.map(&:first).tally
    counts.any? { |tag, count| count >= SIZES[tag] }
  end
  { records: $records }
end

begin
  answer = send(SPEC['action'])
rescue StandardError => e
  warn e.full_message
  answer = { error: "#{e.class}: #{e.message}" }
end
$workers.each { |pid| Process.kill('KILL', pid) }
puts JSON.generate(answer)
$stdout.flush
exit!(0)
