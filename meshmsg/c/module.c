/* The module `meshmsg._speed`: the door to the compiled core.  What is in it is in the other files;
 * `_native.py` decides whether it is used. */
#include "speed.h"

/* Goes up with every change of what Python code expects here: an older build that lies around is
 * then passed over instead of misused. */
#define INTERFACE 12

#define FUNCTION(name, function, kind) {name, (PyCFunction)(void (*)(void))function, kind, NULL}

static PyMethodDef functions[] = {
    FUNCTION("crc32c", mm_crc32c_py, METH_FASTCALL),
    FUNCTION("encode_frame", mm_encode_frame, METH_FASTCALL | METH_KEYWORDS),
    FUNCTION("scan", mm_scan, METH_O),
    FUNCTION("set_up_decoder", mm_set_up_decoder, METH_VARARGS),
    FUNCTION("read_frame", mm_read_frame, METH_FASTCALL),
    FUNCTION("column_length", mm_column_length, METH_FASTCALL),
    FUNCTION("split", mm_split, METH_FASTCALL),
    FUNCTION("new_frame", mm_new_frame, METH_O),
    FUNCTION("set_up_batches", mm_set_up_batches, METH_VARARGS),
    FUNCTION("whole_batch", mm_whole_batch, METH_FASTCALL),
    FUNCTION("raw_events", mm_raw_events, METH_FASTCALL),
    FUNCTION("take_next", mm_take_next, METH_FASTCALL),
    FUNCTION("make_events", mm_make_events, METH_FASTCALL),
    FUNCTION("check_headers", mm_check_headers, METH_FASTCALL),
    FUNCTION("is_value_each", mm_is_value_each, METH_VARARGS),
    FUNCTION("data_of", mm_data_of, METH_VARARGS),
    FUNCTION("seal_packets", mm_seal_packets, METH_FASTCALL),
    FUNCTION("open_packets", mm_open_packets, METH_FASTCALL),
    FUNCTION("run_length", mm_run_length, METH_FASTCALL),
    FUNCTION("join_runs", mm_join_runs, METH_O),
    FUNCTION("join_records", mm_join_records, METH_FASTCALL),
    FUNCTION("tail_entries", mm_tail_entries, METH_FASTCALL),
    FUNCTION("settle_loans", mm_settle_loans, METH_NOARGS),
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "meshmsg._speed",
    .m_doc = "The compiled core: what is paid once an event or once a frame.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__speed(void)
{
    mm_crc32c_init();
    if (PyType_Ready(&OpenFrame_Type) < 0 || PyType_Ready(&TailFrame_Type) < 0
        || mm_ready_publish() < 0 || mm_ready_coroutines() < 0
        || mm_ready_shortcut() < 0 || mm_ready_event() < 0) {
        return NULL;
    }
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL || PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0
        || PyModule_AddType(module, &OpenFrame_Type) < 0
        || PyModule_AddType(module, &TailFrame_Type) < 0
        || PyModule_AddType(module, &Publish_Type) < 0
        || PyModule_AddType(module, &Coroutine_Type) < 0
        || PyModule_AddType(module, &AsyncPublish_Type) < 0
        || PyModule_AddType(module, &AsyncEvents_Type) < 0
        || PyModule_AddType(module, &Iteration_Type) < 0
        || PyModule_AddType(module, &Port_Type) < 0 || mm_add_datagrams(module) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
