// Fast path for calls of a compiled program: repeats a call that Python has made before, without Python between
// arguments and results. `remember` records a call that Python has made. `call` checks that a new call has the same
// structure, types, shapes, strides and constants as a recorded one, and runs its launches. Otherwise it returns
// NotImplemented: then Python makes the call, reports errors if there are any, and records it.
#include <Python.h>

#include <ATen/EmptyTensor.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>

// Declared in a header of libtorch_python that takes ten times as long to compile as all others together.
PyObject* THPVariable_Wrap(at::TensorBase&&);
extern PyObject *THPVariableClass, *ParameterClass;

namespace {

using Tensor = c10::TensorImpl;
using Run = void(const long long* first, const long long* end, char* const* memory, int threads, char* message,
                 double* clock);

constexpr size_t HUGE_BYTES = 4 << 20, MESSAGE = 200, MOST_SHAPES = 64, LEAST_SAMPLES = 8, MOST_SAMPLES = 64;

// Returns the tensor in a Python tensor object. It assumes that the tensor follows the object's header; Python checks
// this once by `address`.
at::TensorBase& tensor_of(PyObject* object) {
  return *reinterpret_cast<at::TensorBase*>(reinterpret_cast<char*>(object) + sizeof(PyObject));
}

bool is_tensor(PyObject* o) {
  return Py_TYPE(o) == (PyTypeObject*)THPVariableClass || Py_TYPE(o) == (PyTypeObject*)ParameterClass;
}

// An owned reference to a Python object, or null. `to` creates one from a borrowed reference; `give` passes ownership
// on.
struct Ref {
  PyObject* object = nullptr;
  Ref() = default;
  explicit Ref(PyObject* taken) : object(taken) {}
  Ref(Ref&& other) noexcept : object(std::exchange(other.object, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept { return std::swap(object, other.object), *this; }
  ~Ref() { Py_XDECREF(object); }
  static Ref to(PyObject* o) { return Ref(Py_NewRef(o)); }
  PyObject* give() { return std::exchange(object, nullptr); }
  explicit operator bool() const { return object; }
};

// Dispatch keys of a plain tensor, whose elements are in host memory: not sparse, negated, fake or wrapped by a
// transform. with_autograd adds the autograd keys, which a plain tensor may or may not have, for comparisons.
c10::DispatchKeySet with_autograd(c10::DispatchKeySet keys) {
  return keys | c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU});
}
c10::DispatchKeySet plain_keys() {
  static const auto keys = with_autograd(at::detail::empty_cpu({0}, at::kFloat).key_set());
  return keys;
}

// Returns true if torch runs operators of this thread as usual: no dispatch mode and no function transform is active.
bool is_plain_thread() {
  constexpr c10::DispatchKeySet usual({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::BackendSelect});
  return (c10::impl::tls_local_dispatch_key_set().included_ - usual).empty();
}

// Type, shape and strides of a recorded tensor. `matches` compares another tensor with them.
struct Like {
  at::ScalarType dtype;
  c10::SmallVector<int64_t, 5> sizes, strides;
  size_t bytes;
  explicit Like(const at::TensorBase& t)
      : dtype(t.scalar_type()), sizes(t.sizes().begin(), t.sizes().end()),
        strides(t.strides().begin(), t.strides().end()), bytes(t.nbytes()) {}
  bool matches(const Tensor& t) const {
    return with_autograd(t.key_set()) == plain_keys() && t.dtype() == dtype && t.sizes() == c10::IntArrayRef(sizes) &&
           t.is_contiguous();
  }
};

char* address(Tensor& t, bool written) {
  return static_cast<char*>(written ? t.mutable_data() : const_cast<void*>(t.data()));
}

// Asks the system for huge pages if the memory is large: page faults of fresh memory are several times faster.
void advise(char* first, size_t size) {
  const uintptr_t page = 4096, begin = ((uintptr_t)first + page - 1) / page * page, end = (uintptr_t)first + size;
  if (size >= HUGE_BYTES) madvise((void*)begin, end - begin, MADV_HUGEPAGE);
}

// Scratch memory of a call, reused by later calls.
struct Free { void operator()(char* p) const { free(p); } };
struct Scratch {
  std::unique_ptr<char, Free> memory;
  size_t size = 0;
};

// Returns a checksum of a sample of the tensor's contents: one 8-byte word per KiB of its memory, at least
// LEAST_SAMPLES and at most MOST_SAMPLES words, evenly spaced from the first word to the last. If the tensor has fewer
// words, all are used.
uint64_t sample(const Tensor& t) {
  if (!t.numel()) return 0;
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  const size_t bytes = (last + 1) * t.itemsize(), count = std::clamp(bytes / 1024, LEAST_SAMPLES, MOST_SAMPLES);
  const char* const data = static_cast<const char*>(t.data());
  uint64_t sum = 0, word = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t place = bytes > 8 * count ? i * (bytes - 8) / (count - 1) : 8 * i;
    if (place < bytes) memcpy(&word, data + place, std::min<size_t>(bytes - place, 8));
    sum += word * (0x9e3779b97f4a7c15 * (2 * i + 1));
  }
  return sum;
}

// A constant: an argument from which the program has computed something that it reuses (such as a packed weight).
// Records its address, PyTorch's version counter of in-place changes, and a checksum of its contents, to detect
// changes.
struct Constant {
  Py_ssize_t argument;
  const void* data;
  uint32_t version;
  uint64_t contents;
  static Constant of(Py_ssize_t argument, Tensor& t) {
    return {argument, t.data(), t.is_inference() ? 0 : t.version_counter().current_version(), sample(t)};
  }
  bool matches(Tensor& t) const {
    const Constant now = of(argument, t);
    return now.data == data && now.version == version && now.contents == contents;
  }
};

// Returns true if dictionaries have the recorded entries, a flat tuple (dictionary, key, value, ...). If a key is None,
// the dictionary must have `value` entries.
bool holds(PyObject* entries) {
  PyObject* const* entry = reinterpret_cast<PyTupleObject*>(entries)->ob_item;
  for (PyObject* const* const end = entry + Py_SIZE(entries); entry < end; entry += 3)
    if (entry[1] == Py_None ? PyDict_GET_SIZE(entry[0]) != PyLong_AsSsize_t(entry[2])
                            : PyDict_GetItemWithError(entry[0], entry[1]) != entry[2])
      return false;
  return true;
}

// Recorded entries (see `holds`) with the versions of their dictionaries. Before 3.14, Python counts changes of a
// dictionary, and comparing the version takes a tenth of the time of a lookup.
struct State {
  Ref entries;
  std::vector<std::pair<PyDictObject*, uint64_t>> versions;
  explicit State(PyObject* tuple) : entries(Ref::to(tuple)) {
    for (Py_ssize_t i = 0; i < Py_SIZE(tuple); i += 3)
      versions.emplace_back((PyDictObject*)PyTuple_GET_ITEM(tuple, i), 0);
    std::sort(versions.begin(), versions.end());
    versions.erase(std::unique(versions.begin(), versions.end()), versions.end());
  }
  bool is_current() {
#if PY_VERSION_HEX < 0x030E0000
    const auto same = [](const auto& v) { return v.first->ma_version_tag == v.second; };
    if (std::all_of(versions.begin(), versions.end(), same)) return true;
    if (!holds(entries.object)) return false;
    for (auto& [dictionary, version] : versions) version = dictionary->ma_version_tag;
    return true;
#else
    return holds(entries.object);
#endif
  }
};

// A recorded call: the program's launches for arguments of certain shapes, encoded as the numbers from `first` to `end`
// (host.hpp). `keeper` owns these numbers. `scratch`: bytes of scratch memory. `cores`: whether more than one thread
// may run. `releases`: whether the call releases Python's GIL.
struct Shapes {
  std::vector<Like> inputs;
  std::vector<Constant> constants;
  std::vector<std::pair<Like, Py_ssize_t>> results;  // and index of the argument whose memory a result uses, or -1
  const long long *first, *end;
  Py_ssize_t scratch;
  int cores, releases;
  Ref keeper;
};

// Source of an argument of the program: a fixed tensor, or the leaf number `leaf` of the call's arguments. A leaf is an
// object in the nested tuples and lists of the arguments.
struct Source { Py_ssize_t leaf; Ref tensor; };
enum Kind { RESULT, ARGUMENT, CONSTANT };
// A leaf of the returned value: result or argument `number` of the program, or a constant Python object, `value`.
struct Leaf { Kind kind; Py_ssize_t number; Ref value; };

// A compiled program with the calls recorded for it. `examples`: leaves of the first call's arguments; `result`: tree
// of leaf numbers of the returned value; `build`: optional function that the returned value is passed through; `fail`:
// optional function that is called with the message of a failed run-time check.
struct Calls {
  Run* run;
  std::vector<Source> sources;
  std::vector<Py_ssize_t> changed;  // indices of the arguments that the program changes in place
  std::vector<Leaf> leaves;         // leaves of the returned value
  Ref arguments, keywords, examples, result, build, fail;
  std::unique_ptr<State> state;
  std::vector<std::shared_ptr<Shapes>> shapes;  // most recently used first
  std::vector<Scratch> free;
};
struct Object {
  PyObject_HEAD
  Calls* calls;
};
Calls& calls_of(PyObject* self) { return *reinterpret_cast<Object*>(self)->calls; }

using Objects = c10::SmallVector<PyObject*, 24>;
using Tensors = c10::SmallVector<Tensor*, 24>;

// Appends the leaves of `value`, a tree of tuples and lists. Returns false if its structure differs from that of
// `model`.
bool flatten(PyObject* model, PyObject* value, Objects& leaves) {
  const bool tuple = PyTuple_CheckExact(model);
  if (!tuple && !PyList_CheckExact(model)) return leaves.push_back(value), true;
  if (Py_TYPE(value) != Py_TYPE(model) || Py_SIZE(value) != Py_SIZE(model)) return false;
  for (Py_ssize_t i = 0; i < Py_SIZE(model); ++i) {
    PyObject* const inner = tuple ? PyTuple_GET_ITEM(value, i) : PyList_GET_ITEM(value, i);
    if (!flatten(tuple ? PyTuple_GET_ITEM(model, i) : PyList_GET_ITEM(model, i), inner, leaves)) return false;
  }
  return true;
}

// Builds a tree with the structure of `model`, whose leaves are indices into `leaves`. Returns null on a Python error.
Ref unflatten(PyObject* model, const std::vector<Ref>& leaves) {
  const bool tuple = PyTuple_CheckExact(model);
  if (!tuple && !PyList_CheckExact(model)) return Ref::to(leaves[PyLong_AsSsize_t(model)].object);
  Ref made(tuple ? PyTuple_New(Py_SIZE(model)) : PyList_New(Py_SIZE(model)));
  for (Py_ssize_t i = 0; made && i < Py_SIZE(model); ++i) {
    Ref inner = unflatten(tuple ? PyTuple_GET_ITEM(model, i) : PyList_GET_ITEM(model, i), leaves);
    if (!inner) return inner;
    tuple ? PyTuple_SET_ITEM(made.object, i, inner.give()) : PyList_SET_ITEM(made.object, i, inner.give());
  }
  return made;
}

// Collects the leaves of a call's arguments. Returns false unless their structure is that of the first call and all
// leaves that were not tensors in the first call are equal to those.
bool leaves_of(const Calls& c, PyObject* const* args, Py_ssize_t count, PyObject* names, Objects& leaves) {
  const Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  if (count != PyTuple_GET_SIZE(c.arguments.object) || named != PyTuple_GET_SIZE(c.keywords.object)) return false;
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!flatten(PyTuple_GET_ITEM(c.arguments.object, i), args[i], leaves)) return false;
  for (Py_ssize_t i = 0; i < named; ++i) {
    PyObject* const pair = PyTuple_GET_ITEM(c.keywords.object, i);  // name and model
    if (PyTuple_GET_ITEM(names, i) != PyTuple_GET_ITEM(pair, 0)) return false;  // names are interned
    if (!flatten(PyTuple_GET_ITEM(pair, 1), args[count + i], leaves)) return false;
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    PyObject* const example = PyTuple_GET_ITEM(c.examples.object, i);
    if (example == leaves[i] || is_tensor(example)) continue;
    const bool comparable = PyLong_CheckExact(example) || PyFloat_CheckExact(example) || PyUnicode_CheckExact(example);
    if (!comparable || Py_TYPE(example) != Py_TYPE(leaves[i])) return false;
    if (PyObject_RichCompareBool(example, leaves[i], Py_EQ) != 1) return false;
  }
  return true;
}

PyObject* object_of(const Source& source, const Objects& leaves) {
  return source.tensor ? source.tensor.object : leaves[source.leaf];
}

// Collects the tensors of the program's arguments. Returns false if one is no tensor or if autograd must record the
// call.
bool tensors_of(const Calls& c, const Objects& leaves, Tensors& tensors) {
  const bool records = c10::GradMode::is_enabled();
  for (const Source& source : c.sources) {
    PyObject* const object = object_of(source, leaves);
    if (!is_tensor(object)) return false;
    Tensor* const tensor = tensor_of(object).unsafeGetTensorImpl();
    if (records && tensor->requires_grad()) return false;
    tensors.push_back(tensor);
  }
  return true;
}

bool has_constants(const Shapes& s, const Tensors& tensors) {
  return std::all_of(s.constants.begin(), s.constants.end(),
                     [&](const Constant& c) { return c.matches(*tensors[c.argument]); });
}

// Returns the recorded call for tensors of these types and shapes, and moves it to the front; null if there is none.
std::shared_ptr<Shapes> shapes_of(Calls& c, const Tensors& tensors) {
  for (size_t n = 0; n < c.shapes.size(); ++n) {
    const auto& inputs = c.shapes[n]->inputs;
    size_t i = 0;
    while (i < inputs.size() && inputs[i].matches(*tensors[i])) ++i;
    if (i < inputs.size() || !has_constants(*c.shapes[n], tensors)) continue;
    std::rotate(c.shapes.begin(), c.shapes.begin() + n, c.shapes.begin() + n + 1);
    return c.shapes[0];
  }
  return nullptr;
}

// Returns true if no argument that the program changes overlaps another argument in memory.
bool are_apart(const Calls& c, const Shapes& s, const c10::SmallVector<char*, 32>& memory) {
  for (const Py_ssize_t i : c.changed)
    for (size_t j = 0; j < s.inputs.size(); ++j)
      if ((size_t)i != j && memory[i] < memory[j] + s.inputs[j].bytes && memory[j] < memory[i] + s.inputs[i].bytes)
        return false;
  return true;
}

// Makes a call by a recorded one and returns its result. If no recorded call matches, it returns null and `made` stays
// false. If a Python error occurs, it returns null.
Ref make_call(Calls& c, PyObject* const* args, Py_ssize_t count, PyObject* names, bool& made) {
  Objects leaves;
  Tensors tensors;
  if (!is_plain_thread() || !c.state->is_current()) return {};
  if (!leaves_of(c, args, count, names, leaves) || !tensors_of(c, leaves, tensors)) return {};
  const std::shared_ptr<Shapes> s = shapes_of(c, tensors);
  if (!s) return {};
  c10::SmallVector<char*, 32> memory;
  for (Tensor* tensor : tensors) memory.push_back(address(*tensor, false));
  for (const Py_ssize_t i : c.changed) {
    if (tensors[i]->is_inference() && !c10::InferenceMode::is_enabled()) return {};  // Python reports the error
    memory[i] = address(*tensors[i], true);
  }
  if (!are_apart(c, *s, memory)) return {};
  made = true;
  c10::SmallVector<at::TensorBase, 4> results;
  for (const auto& [like, same] : s->results) {
    results.push_back(same < 0 ? at::detail::empty_strided_cpu(like.sizes, like.strides, like.dtype) : at::TensorBase());
    memory.push_back(same < 0 ? address(*results.back().unsafeGetTensorImpl(), true) : memory[same]);
    if (same < 0) advise(memory.back(), like.bytes);
  }
  Scratch scratch;
  if (s->scratch && !c.free.empty()) scratch = std::move(c.free.back()), c.free.pop_back();
  if (scratch.size < (size_t)s->scratch) {
    scratch = {std::unique_ptr<char, Free>((char*)aligned_alloc(4096, (s->scratch + 4095) / 4096 * 4096)), (size_t)s->scratch};
    if (!scratch.memory) return PyErr_NoMemory(), Ref();
    advise(scratch.memory.get(), scratch.size);
  }
  memory.push_back(scratch.memory.get());
  char message[MESSAGE];
  message[0] = 0;
  const int threads = s->cores ? at::get_num_threads() : 1;
  PyThreadState* const state = s->releases ? PyEval_SaveThread() : nullptr;
  c.run(s->first, s->end, memory.data(), threads, c.fail ? message : nullptr, nullptr);
  if (state) PyEval_RestoreThread(state);
  for (const Py_ssize_t i : c.changed) tensors[i]->bump_version();  // autograd may have saved the tensor
  if (s->scratch) c.free.push_back(std::move(scratch));
  if (message[0]) return Ref(PyObject_CallFunction(c.fail.object, "s", message));
  std::vector<Ref> wrapped(results.size()), given;
  for (const Leaf& leaf : c.leaves) {
    if (leaf.kind == RESULT) {
      Ref& one = wrapped[leaf.number];
      if (!one) one = Ref(THPVariable_Wrap(std::move(results[leaf.number])));
      if (!one) return {};
      given.push_back(Ref::to(one.object));
    } else {
      given.push_back(Ref::to(leaf.kind == ARGUMENT ? object_of(c.sources[leaf.number], leaves) : leaf.value.object));
    }
  }
  Ref result = unflatten(c.result.object, given);
  return result && c.build ? Ref(PyObject_CallOneArg(c.build.object, result.object)) : std::move(result);
}

PyObject* calls_call(PyObject* self, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  bool made = false;
  try {
    Ref result = make_call(calls_of(self), args, count, names, made);
    if (result || made) return result.give();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return PyErr_Occurred() ? nullptr : Py_NewRef(Py_NotImplemented);
}

// remember(inputs, results, first, end, scratch, cores, releases, constants, keeper): records a call that Python has
// made, with its tensors; see Shapes for the other parameters. A result is a tensor, or the index of the argument whose
// memory it uses. Constants are indices of arguments. Removes recorded calls whose constants have changed. Returns True
// if it recorded the call; calls with tensors that are not plain are not recorded.
PyObject* calls_remember(PyObject* self, PyObject* args) {
  Calls& c = calls_of(self);
  auto s = std::make_shared<Shapes>();
  PyObject *inputs, *results, *constants, *keeper;
  if (!PyArg_ParseTuple(args, "O!O!LLnppO!O", &PyTuple_Type, &inputs, &PyTuple_Type, &results, &s->first, &s->end,
                        &s->scratch, &s->cores, &s->releases, &PyTuple_Type, &constants, &keeper))
    return nullptr;
  s->keeper = Ref::to(keeper);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
    PyObject* const input = PyTuple_GET_ITEM(inputs, i);
    if (!is_tensor(input)) Py_RETURN_FALSE;
    s->inputs.emplace_back(tensor_of(input));
    if (!s->inputs.back().matches(*tensor_of(input).unsafeGetTensorImpl())) Py_RETURN_FALSE;
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
    PyObject* const result = PyTuple_GET_ITEM(results, i);
    const Py_ssize_t same = PyLong_Check(result) ? PyLong_AsSsize_t(result) : -1;
    if (same < 0 && !is_tensor(result)) Py_RETURN_FALSE;
    s->results.emplace_back(same < 0 ? Like(tensor_of(result)) : s->inputs.at(same), same);
  }
  Tensors tensors;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i)
    tensors.push_back(tensor_of(PyTuple_GET_ITEM(inputs, i)).unsafeGetTensorImpl());
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(constants); ++i) {
    const Py_ssize_t argument = PyLong_AsSsize_t(PyTuple_GET_ITEM(constants, i));
    s->constants.push_back(Constant::of(argument, *tensors[argument]));
  }
  c.shapes.erase(std::remove_if(c.shapes.begin(), c.shapes.end(),
                                [&](const auto& old) { return !has_constants(*old, tensors); }),
                 c.shapes.end());
  if (shapes_of(c, tensors)) Py_RETURN_FALSE;
  c.shapes.insert(c.shapes.begin(), std::move(s));
  if (c.shapes.size() > MOST_SHAPES) c.shapes.pop_back();
  Py_RETURN_TRUE;
}

// Calls(run, arguments, keywords, examples, sources, changed, result, leaves, build, state, fail): see the fields of
// Calls. `run` is the address of the program's C++ function, and `state` a tuple for `holds`.
PyObject* calls_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *arguments, *keywords, *examples, *sources, *changed, *result, *leaves, *build, *state, *fail;
  long long run;
  if (!PyArg_ParseTuple(args, "LO!O!O!O!O!OO!OO!O", &run, &PyTuple_Type, &arguments, &PyTuple_Type, &keywords,
                        &PyTuple_Type, &examples, &PyTuple_Type, &sources, &PyTuple_Type, &changed, &result,
                        &PyTuple_Type, &leaves, &build, &PyTuple_Type, &state, &fail))
    return nullptr;
  PyObject* const self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  Calls* const c = reinterpret_cast<Object*>(self)->calls = new Calls{reinterpret_cast<Run*>(run)};
  c->arguments = Ref::to(arguments), c->keywords = Ref::to(keywords), c->examples = Ref::to(examples);
  c->result = Ref::to(result), c->state = std::make_unique<State>(state);
  if (build != Py_None) c->build = Ref::to(build);
  if (fail != Py_None) c->fail = Ref::to(fail);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(sources); ++i) {
    PyObject* const source = PyTuple_GET_ITEM(sources, i);
    const bool leaf = PyLong_Check(source);
    c->sources.push_back({leaf ? PyLong_AsSsize_t(source) : -1, leaf ? Ref() : Ref::to(source)});
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(changed); ++i)
    c->changed.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(changed, i)));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); ++i) {
    int kind;
    Py_ssize_t number;
    PyObject* value;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(leaves, i), "inO", &kind, &number, &value)) return Py_DECREF(self), nullptr;
    c->leaves.push_back({Kind(kind), number, Ref::to(value)});
  }
  return self;
}

void calls_free(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  delete &calls_of(self);
  type->tp_free(self);
  Py_DECREF(type);
}

// For Python's cycle collector: a module may refer to the program that was compiled from it, whose state refers to the
// module.
int calls_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Calls* const c = reinterpret_cast<Object*>(self)->calls;
  if (c && c->state) Py_VISIT(c->state->entries.object);
  return 0;
}

// address(tensor): address of the C++ tensor, which Python compares with `_cdata`; see tensor_of.
PyObject* address_of(PyObject*, PyObject* object) {
  return PyLong_FromVoidPtr(is_tensor(object) ? tensor_of(object).unsafeGetTensorImpl() : nullptr);
}

// All properties of a tensor on which a compiled program may depend, on any device. Its sizes and strides are in
// `Snapshot::numbers`.
struct Seen {
  const Tensor* tensor;             // only prefetched, because it may have been freed
  const c10::StorageImpl* storage;  // likewise
  c10::DispatchKeySet keys;
  const void* memory;
  int64_t offset;
  size_t rank;
  c10::Device device;
  caffe2::TypeMeta dtype;
  bool gradient;

  explicit Seen(const Tensor& t)
      : tensor(&t), storage(t.unsafe_storage().unsafeGetStorageImpl()), keys(t.key_set()), memory(storage->data()),
        offset(t.storage_offset()), rank(t.dim()), device(t.device()), dtype(t.dtype()), gradient(t.requires_grad()) {}

  // The comparison reads all cache lines of the tensor object, and the first line of its storage object.
  void prefetch() const {
    for (size_t line = 0; line <= sizeof(Tensor); line += 64) __builtin_prefetch((const char*)tensor + line);
    __builtin_prefetch(storage);
  }

  // Compares without branches after the keys and the rank, because mispredicted branches take longer than the
  // comparisons. `places`: also compares the address of the memory.
  bool matches(const Tensor& t, const int64_t* numbers, bool places) const {
    if (t.key_set() != keys || size_t(t.dim()) != rank) return false;
    uint64_t differ = (t.device() != device) | (t.dtype() != dtype) | (t.requires_grad() != gradient);
    if (places) differ |= (uint64_t(t.unsafe_storage().data()) ^ uint64_t(memory)) | (t.storage_offset() ^ offset);
    const int64_t *const sizes = t.sizes().data(), *const strides = t.strides().data();
    for (size_t i = 0; i < rank; ++i) differ |= (sizes[i] ^ numbers[i]) | (strides[i] ^ numbers[rank + i]);
    return !differ;
  }
};

// Properties of several tensors, stored compactly: a program may have hundreds of constants, and each call compares
// all.
struct Snapshot {
  std::vector<Seen> tensors;
  std::vector<int64_t> numbers;
};
constexpr ptrdiff_t AHEAD = 4;  // prefetch distance in tensors

// Returns true for a plain strided tensor on any device.
bool is_known(const at::TensorBase& t) {
  return t.defined() && t.layout() == at::kStrided && t.has_storage() && !t.is_quantized() &&
         !t.key_set().has_any(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::Negative,
                                                   c10::DispatchKey::Conjugate, c10::DispatchKey::ZeroTensor}));
}

// snapshot(tensors): records tensors for `is_alike`. Returns None if one is no plain tensor, or if a dispatch mode is
// active.
PyObject* snapshot(PyObject*, PyObject* tensors) {
  if (!PyTuple_Check(tensors)) return PyErr_Format(PyExc_TypeError, "snapshot of a tuple");
  auto record = std::make_unique<Snapshot>();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tensors); ++i) {
    PyObject* const object = PyTuple_GET_ITEM(tensors, i);
    if (!is_tensor(object) || !is_known(tensor_of(object)) || !is_plain_thread()) Py_RETURN_NONE;
    const Tensor& t = *tensor_of(object).unsafeGetTensorImpl();
    record->tensors.emplace_back(t);
    for (const auto part : {t.sizes(), t.strides()})
      record->numbers.insert(record->numbers.end(), part.begin(), part.end());
  }
  return PyCapsule_New(record.release(), "snapshot", [](PyObject* capsule) {
    delete static_cast<Snapshot*>(PyCapsule_GetPointer(capsule, "snapshot"));
  });
}

// is_alike(snapshot, tensors, places): returns True if the tensors have the recorded properties; with `places`, also
// the same memory.
PyObject* is_alike(PyObject*, PyObject* const* args, Py_ssize_t count) {
  const auto seen = count == 3 ? static_cast<Snapshot*>(PyCapsule_GetPointer(args[0], "snapshot")) : nullptr;
  if (!seen || !PyTuple_Check(args[1])) return PyErr_Format(PyExc_TypeError, "is_alike(snapshot, tuple, places)");
  bool same = size_t(PyTuple_GET_SIZE(args[1])) == seen->tensors.size() && is_plain_thread();
  const bool places = args[2] == Py_True;
  const int64_t* numbers = seen->numbers.data();
  const Seen* const last = seen->tensors.data() + seen->tensors.size();
  PyObject* const* object = reinterpret_cast<PyTupleObject*>(args[1])->ob_item;
  for (const Seen* was = seen->tensors.data(); same && was < last; ++was, ++object) {
    if (last - was > AHEAD) {
      __builtin_prefetch(object[AHEAD]);
      was[AHEAD].prefetch();
    }
    same = is_tensor(*object) && was->matches(*tensor_of(*object).unsafeGetTensorImpl(), numbers, places);
    numbers += 2 * was->rank;
  }
  return PyBool_FromLong(same);
}

// seen(tensor): returns the address, version and checksum of a constant (see Constant), or None for no plain CPU
// tensor.
PyObject* seen(PyObject*, PyObject* object) {
  if (!is_tensor(object) || !is_known(tensor_of(object)) || !tensor_of(object).device().is_cpu()) Py_RETURN_NONE;
  const Constant now = Constant::of(0, *tensor_of(object).unsafeGetTensorImpl());
  return Py_BuildValue("nIK", (Py_ssize_t)now.data, now.version, now.contents);
}

PyObject* holds_now(PyObject*, PyObject* entries) {
  if (!PyTuple_Check(entries) || Py_SIZE(entries) % 3) return PyErr_Format(PyExc_TypeError, "holds(tuple of triples)");
  return PyBool_FromLong(holds(entries));
}

PyMethodDef methods[] = {{"call", (PyCFunction)(void (*)())calls_call, METH_FASTCALL | METH_KEYWORDS, nullptr},
                         {"remember", calls_remember, METH_VARARGS, nullptr},
                         {}};
PyMethodDef functions[] = {{"address", address_of, METH_O, nullptr},
                           {"snapshot", snapshot, METH_O, nullptr},
                           {"seen", seen, METH_O, nullptr},
                           {"holds", holds_now, METH_O, nullptr},
                           {"is_alike", (PyCFunction)(void (*)())is_alike, METH_FASTCALL, nullptr},
                           {}};
PyType_Slot slots[] = {{Py_tp_new, (void*)calls_new},
                       {Py_tp_dealloc, (void*)calls_free},
                       {Py_tp_traverse, (void*)calls_traverse},
                       {Py_tp_methods, methods},
                       {}};
PyType_Spec spec = {"deplodock_calls.Calls", sizeof(Object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "deplodock_calls", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit_deplodock_calls() {
  PyObject* const made = PyModule_Create(&module);
  PyObject* const type = PyType_FromSpec(&spec);
  if (made && type) PyModule_AddObject(made, "Calls", type);
  return made;
}
