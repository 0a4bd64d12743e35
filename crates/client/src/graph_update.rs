//! Updates of instantiated graphs by graphs of the same shape.

use std::sync::Arc;

use weft_wire::Status;

use crate::client::Client;
use crate::graph::Work;
use crate::graph_exec::{Contents, Flat, GraphExecState};
use crate::handle::{Graph, GraphExec, GraphNode};

/// What became of an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Updated {
    /// The instantiated graph does what the graph does.
    Done,
    /// The graphs have other nodes or dependencies; the first node that differs, or null.
    TopologyChanged(GraphNode),
    /// This node is of another kind.
    KindChanged(GraphNode),
}

type FlatNode = (Vec<u32>, Work, bool);

impl Client {
    /// Makes an instantiated graph do what `graph` does, for launches from now on. Nodes are paired
    /// in the order of their making. Nothing changes unless all of it can; nodes that are switched
    /// off stay so.
    ///
    /// # Errors
    /// `INVALID_VALUE` for stale handles, and what setting the nodes one by one would answer.
    pub fn graph_exec_update(&self, exec: GraphExec, graph: Graph) -> Result<Updated, Status> {
        let state = self.healthy_exec(exec)?;
        let mut flat = Flat::default();
        self.flatten(graph, None, &mut flat)?;
        let kept = std::mem::take(&mut flat.held);
        let mut contents = state.contents();
        if contents.nodes.len() != flat.nodes.len() {
            return Ok(Updated::TopologyChanged(GraphNode::NULL));
        }
        let updated = self.replace_nodes(&state, &mut contents, 0, flat)?;
        if updated == Updated::Done {
            let before = std::mem::replace(&mut contents.held, kept);
            self.let_go(state.context, contents.launched, before.into_values());
        }
        Ok(updated)
    }

    /// Replaces the graph that a node of an instantiated graph holds by one of the same shape.
    ///
    /// # Errors
    /// `INVALID_VALUE` for stale handles, a node without graph, or a graph of another shape.
    pub fn graph_exec_set_child(
        &self,
        exec: GraphExec,
        node: GraphNode,
        child: Graph,
    ) -> Result<(), Status> {
        let state = self.healthy_exec(exec)?;
        let position = state.position(node)?;
        let mut contents = state.contents();
        let end = *contents.children.get(&position).ok_or(Status::INVALID_VALUE)?;
        // The child's nodes keep their places behind the node that holds them.
        let first = position + 1;
        let before = usize::try_from(first).map_err(|_| Status::INVALID_VALUE)?;
        let mut flat = Flat::default();
        flat.nodes.resize_with(before, || (Vec::new(), Work::Empty, true));
        self.flatten(child, Some(position), &mut flat)?;
        let kept = std::mem::take(&mut flat.held);
        if u32::try_from(flat.nodes.len()) != Ok(end) {
            return Err(Status::INVALID_VALUE);
        }
        flat.nodes.drain(..before);
        match self.replace_nodes(&state, &mut contents, first, flat)? {
            Updated::Done => {
                let held = &mut contents.held;
                let before: Vec<_> =
                    held.extract_if(Some(position)..Some(end), |_, _| true).collect();
                held.extend(kept);
                let before = before.into_iter().map(|(_, held)| held);
                self.let_go(state.context, contents.launched, before);
                Ok(())
            }
            Updated::TopologyChanged(_) | Updated::KindChanged(_) => Err(Status::INVALID_VALUE),
        }
    }

    /// Replaces the nodes from position `first` on by those of `flat`, if they have the same shape.
    fn replace_nodes(
        &self,
        state: &GraphExecState,
        contents: &mut Contents,
        first: u32,
        flat: Flat,
    ) -> Result<Updated, Status> {
        let last = first + u32::try_from(flat.nodes.len()).map_err(|_| Status::INVALID_VALUE)?;
        let at = usize::try_from(first).map_err(|_| Status::INVALID_VALUE)?;
        let held = contents.nodes.get(at..).unwrap_or_default();
        if let Some((position, kind)) = (first..)
            .zip(differences(held, &flat.nodes))
            .find_map(|(position, differs)| differs.map(|kind| (position, kind)))
        {
            let node = flat.positions.iter().find(|(_, place)| **place == position);
            let node = node.map_or(GraphNode::NULL, |(node, _)| *node);
            return Ok(if kind {
                Updated::KindChanged(node)
            } else {
                Updated::TopologyChanged(node)
            });
        }
        if !contents.children.range(first..last).eq(&flat.children) {
            return Ok(Updated::TopologyChanged(GraphNode::NULL));
        }
        let mut changes = Vec::new();
        for (position, ((_, old, enabled), (_, new, _))) in
            (first..).zip(held.iter().zip(flat.nodes))
        {
            if !is_same(old, &new) {
                // What cannot be sent is refused before anything has changed.
                self.wire_work(&state.session, &new, 0)?;
                changes.push((position, new, *enabled));
            }
        }
        for (position, work, enabled) in changes {
            self.put_node(state, contents, position, work, enabled)?;
        }
        Ok(Updated::Done)
    }
}

/// For each pair of nodes nothing, or whether it is the kind (and not the place) that differs.
fn differences<'a>(
    held: &'a [FlatNode],
    new: &'a [FlatNode],
) -> impl Iterator<Item = Option<bool>> + 'a {
    held.iter().zip(new).map(|((after, old, _), (new_after, new, _))| {
        if after != new_after {
            return Some(false);
        }
        (std::mem::discriminant(old) != std::mem::discriminant(new)).then_some(true)
    })
}

/// Whether two works of one kind certainly do the same.
fn is_same(old: &Work, new: &Work) -> bool {
    match (old, new) {
        (Work::Kernel(old), Work::Kernel(new)) => {
            Arc::ptr_eq(&old.target, &new.target)
                && old.launch == new.launch
                && old.params == new.params
        }
        (Work::Copy(old), Work::Copy(new)) => old == new,
        (Work::Fill(old), Work::Fill(new)) => old == new,
        (Work::EventRecord(old), Work::EventRecord(new))
        | (Work::EventWait(old), Work::EventWait(new)) => old == new,
        (Work::Empty, Work::Empty) => true,
        _ => false,
    }
}
