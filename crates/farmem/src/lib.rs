//! farmem
